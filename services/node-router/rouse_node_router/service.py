"""RPC handlers of NodeService."""

from __future__ import annotations

import grpc

from rouse_common.errors import InvalidArgument, Unavailable
from rouse_contracts import node as contract
from rouse_node_router.queues import Outcome, Queues
from rouse_node_router.requests import NO_INSTANCE, Requests


class NodeServicer(contract.NodeServiceServicer):
    """Answers for the queues and requests of one node; refuses requests until `open`."""

    def __init__(self, node_id: str, queues: Queues, requests: Requests) -> None:
        self._node_id, self._queues, self._requests = node_id, queues, requests
        self._open = False

    def open(self) -> None:
        self._open = True

    async def Infer(self, request: contract.InferRequest, context: grpc.aio.ServicerContext) -> contract.InferResponse:
        remaining_s = context.time_remaining()
        if remaining_s is None:
            raise InvalidArgument("DEADLINE_REQUIRED", "Infer needs a deadline; set a timeout on the call")
        if not (request.function and request.version_id and request.request_id):
            raise InvalidArgument("BAD_REQUEST", "Infer needs function, version_id and request_id")
        if not self._open:
            raise Unavailable(
                NO_INSTANCE,
                f"node '{self._node_id}' is starting and waits for its gpu-server; try another node or again",
                retry_after_s=0.5, node=self._node_id, function=request.function,
            )  # fmt: skip
        return await self._requests.infer(request, remaining_s)

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
