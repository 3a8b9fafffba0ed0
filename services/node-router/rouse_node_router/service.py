"""RPC handlers of NodeService."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rouse_common.errors import InvalidArgument, Unavailable
from rouse_contracts import node as contract
from rouse_contracts import wire
from rouse_node_router.queues import Outcome, Queues
from rouse_node_router.requests import NO_INSTANCE, Requests

SERVICE = "rouse.node.v1.NodeService"


def register(servicer: NodeServicer, server: Any) -> None:
    """What the generated `add_NodeServiceServicer_to_server` does, but Infer gets and gives bytes."""
    handlers = {
        "Infer": grpc.unary_unary_rpc_method_handler(servicer.Infer),
        "DescribeQueues": grpc.unary_unary_rpc_method_handler(
            servicer.DescribeQueues,
            request_deserializer=contract.DescribeQueuesRequest.FromString,
            response_serializer=contract.DescribeQueuesResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_registered_method_handlers(SERVICE, handlers)


class NodeServicer(contract.NodeServiceServicer):
    """Answers for the queues and requests of one node; refuses requests until `open`."""

    def __init__(self, node_id: str, queues: Queues, requests: Requests) -> None:
        self._node_id, self._queues, self._requests = node_id, queues, requests
        self._open = False

    def open(self) -> None:
        self._open = True

    async def Infer(self, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Takes and gives serialised messages: tensors pass through as they are, uncopied (see `register`)."""
        remaining_s = context.time_remaining()
        if remaining_s is None:
            raise InvalidArgument("DEADLINE_REQUIRED", "Infer needs a deadline; set a timeout on the call")
        try:
            rest, inputs = wire.split_bytes(message, contract.InferRequest.INPUTS_FIELD_NUMBER)
            request = contract.InferRequest.FromString(rest)
        except DecodeError as error:
            raise InvalidArgument("BAD_REQUEST", f"that is no NodeService.InferRequest: {error}") from None
        if not (request.function and request.version_id and request.request_id):
            raise InvalidArgument("BAD_REQUEST", "Infer needs function, version_id and request_id")
        if not self._open:
            raise Unavailable(
                NO_INSTANCE,
                f"node '{self._node_id}' is starting and waits for its gpu-server; try another node or again",
                retry_after_s=0.5, node=self._node_id, function=request.function,
            )  # fmt: skip
        return await self._requests.infer(request, inputs, remaining_s)

    async def DescribeQueues(
        self, request: contract.DescribeQueuesRequest, context: grpc.aio.ServicerContext
    ) -> contract.DescribeQueuesResponse:
        return contract.DescribeQueuesResponse(
            queues=[
                contract.QueueSummary(
                    function=row.function,
                    version_id=row.version_id,
                    queued=row.queued,
                    executing=row.executing,
                    completed=row.ended[Outcome.COMPLETED],
                    failed=row.ended[Outcome.FAILED] + row.ended[Outcome.CANCELLED],
                    expired=row.ended[Outcome.EXPIRED],
                    refused=row.ended[Outcome.REFUSED],
                )
                for row in sorted(self._queues.rows(), key=lambda row: (row.function, row.version_id))
            ]
        )
