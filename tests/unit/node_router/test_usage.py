"""Usage records leave in batches, however fast they come."""

from __future__ import annotations

import grpc

from rouse_common.rpc import Channels, RpcServer
from rouse_contracts import cluster
from rouse_node_router.adapters.usage import Usage


class Manager(cluster.ClusterServiceServicer):
    """Takes batches; another record comes while each is on its way."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.usage: Usage | None = None

    async def RecordUsage(
        self, request: cluster.RecordUsageRequest, context: grpc.aio.ServicerContext
    ) -> cluster.RecordUsageResponse:
        self.batches.append([record.request_id for record in request.records])
        assert self.usage is not None
        self.usage.add(cluster.UsageRecord(request_id=f"late-{len(self.batches)}"))
        return cluster.RecordUsageResponse()


async def test_what_comes_while_a_batch_is_sent_waits_for_the_next() -> None:
    manager, channels = Manager(), Channels(1 << 20)
    server = RpcServer("127.0.0.1:0", max_message_bytes=1 << 20)
    server.add(cluster.add_ClusterServiceServicer_to_server, manager, cluster.DESCRIPTOR)
    await server.start()
    try:
        usage = manager.usage = Usage(channels, server.address, limit=10_000)
        for number in range(1500):
            usage.add(cluster.UsageRecord(request_id=str(number)))
        await usage.flush()
        assert [len(batch) for batch in manager.batches] == [1000, 500]
        await usage.flush()
        assert manager.batches[2:] == [["late-1", "late-2"]]
    finally:
        await channels.close()
        await server.stop(0)
