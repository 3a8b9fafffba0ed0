"""Whether a mesh can be used: every service's own health, and the nodes that the control plane knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from grpc_health.v1 import health_pb2, health_pb2_grpc

from rouse_common.errors import RouseError
from rouse_common.rpc import Channels, call
from rouse_common.tls import MeshTls
from rouse_contracts import cluster

PROBE_TIMEOUT_S = 1.0
MAX_MESSAGE_BYTES = 16 << 20


class Health:
    """Asks services over gRPC how they are."""

    def __init__(self, tls: MeshTls | None = None) -> None:
        self._channels = Channels(MAX_MESSAGE_BYTES, tls)

    def probe(self, address: str) -> Callable[[int], Awaitable[bool]]:
        """A check for ProcessSpec: whether the service at `address` says that it serves."""

        async def serves(_: int) -> bool:
            return await self.serves(address)

        return serves

    async def serves(self, address: str) -> bool:
        stub = health_pb2_grpc.HealthStub(self._channels.get(address))
        try:
            answer = await call(stub.Check, health_pb2.HealthCheckRequest(), timeout_s=PROBE_TIMEOUT_S)
        except RouseError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def missing_nodes(self, cluster_manager: str, routers: Collection[tuple[str, str]]) -> list[str]:
        """Which of the nodes, by id and router address, cluster-manager does not know as ready yet."""
        stub = cluster.ClusterServiceStub(self._channels.get(cluster_manager))
        try:
            answer = await call(stub.ListNodes, cluster.ListNodesRequest(), timeout_s=PROBE_TIMEOUT_S)
        except RouseError:
            return [node for node, _ in routers]
        known = {(n.node_id, n.router_address) for n in answer.nodes if n.state == cluster.NODE_STATE_READY}
        return [node for node, router in routers if (node, router) not in known]

    async def close(self) -> None:
        await self._channels.close()
