"""NodeService: requests over a link, everything else over gRPC."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from google.protobuf.message import DecodeError

from rouse_common.errors import InvalidArgument, Unavailable
from rouse_common.link import Buffer, Incoming, LinkServer
from rouse_contracts import node as contract
from rouse_contracts import wire
from rouse_contracts.links import INFER
from rouse_node_router.answers import NO_INSTANCE
from rouse_node_router.queues import Queues
from rouse_node_router.requests import Requests
from rouse_node_router.tickets import Outcome
from rouse_node_router.versions import VersionQueue


class InferLink:
    """Takes requests and gives responses as serialised messages: tensors pass through as they are, uncopied.

    Refuses requests until `open`.
    """

    def __init__(self, node_id: str, requests: Requests) -> None:
        self._node_id, self._requests = node_id, requests
        self._open = False

    def add_to(self, server: LinkServer) -> None:
        server.add(INFER, self.infer)

    def open(self) -> None:
        self._open = True

    async def infer(self, message: Buffer, call: Incoming) -> Sequence[Buffer] | None:
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
        return await self._requests.infer(request, inputs, call.remaining_s, call.send)


class NodeServicer(contract.NodeServiceServicer):
    """Describes the queues of one node."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    async def DescribeQueues(
        self, request: contract.DescribeQueuesRequest, context: grpc.aio.ServicerContext
    ) -> contract.DescribeQueuesResponse:
        queues = sorted(self._queues.known(), key=lambda queue: (queue.function, queue.version_id))
        return contract.DescribeQueuesResponse(queues=[_summary(queue) for queue in queues])


def _summary(queue: VersionQueue) -> contract.QueueSummary:
    row = queue.row()
    return contract.QueueSummary(
        function=row.function,
        version_id=row.version_id,
        queued=row.queued,
        executing=row.executing,
        completed=row.ended[Outcome.COMPLETED],
        failed=row.ended[Outcome.FAILED] + row.ended[Outcome.CANCELLED],
        expired=row.ended[Outcome.EXPIRED],
        refused=row.ended[Outcome.REFUSED],
        statistics=queue.statistics.message(),
    )
