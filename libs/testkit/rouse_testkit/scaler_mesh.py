"""A scaler over real gRPC and Redis, with doubles of cluster-manager and a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from rouse_cache import Windows
from rouse_common.clock import SystemClock
from rouse_common.rpc import Channels, call
from rouse_contracts import scaling
from rouse_scaler.app import Scaler
from rouse_scaler.config import ScalerConfig
from rouse_testkit.clock import ManualClock
from rouse_testkit.doubles_cluster import ClusterDouble, CoordinatorDouble
from rouse_testkit.running import Running, running
from rouse_testkit.served import MAX_MESSAGE_BYTES


class ScalerMesh:
    """A scaler with its neighbours."""

    def __init__(self, redis_url: str) -> None:
        self.redis_url = redis_url
        self.control = ClusterDouble()
        self.node = CoordinatorDouble(self.control)
        self.channels = Channels(MAX_MESSAGE_BYTES)
        self.service: Running
        self.stub: scaling.ScalingServiceStub

    async def wake(self, function: str, version_id: str = "") -> bool:
        request = scaling.WakeFunctionRequest(function=function, version_id=version_id)
        return bool((await call(self.stub.WakeFunction, request, timeout_s=10)).started)

    async def decision(self, function: str) -> scaling.ScalingDecision:
        """The latest decision, once there is one."""
        async with asyncio.timeout(10):
            while True:
                answer = await call(self.stub.ListDecisions, scaling.ListDecisionsRequest(), timeout_s=5)
                decision: scaling.ScalingDecision
                for decision in answer.decisions:
                    if decision.function == function:
                        return decision
                await self.rounds(1)

    async def rounds(self, count: int) -> None:
        """Lets so many whole rounds go by."""
        seen = self.control.calls["ListFunctions"]
        await self.control.until(lambda: self.control.calls["ListFunctions"] > seen + count)

    async def arrivals(self, function: str, count: int, *, seconds: int = 10, device_ms: float = 0.0) -> None:
        """Counts `count` arrivals in each of the last `seconds` seconds, served in `device_ms` each."""
        clock = ManualClock(SystemClock().now() - seconds)
        windows = Windows.connect(self.redis_url, clock)
        for _ in range(seconds):
            for _ in range(count):
                windows.count_arrival(function)
                if device_ms:
                    windows.count_completion(function, device_ms)
            clock.advance(1)
        await windows.flush()
        await windows.close()


Start = Callable[..., Awaitable[ScalerMesh]]


@asynccontextmanager
async def scaler_mesh(
    redis_url: str, prepare: Callable[[ScalerMesh], Awaitable[None]] | None, **options: Any
) -> AsyncIterator[ScalerMesh]:
    mesh = ScalerMesh(redis_url)
    cluster_manager = await mesh.control.start()
    mesh.control.add_node("n0", await mesh.node.start())
    if prepare is not None:
        await prepare(mesh)
    quick: dict[str, Any] = {
        "period_s": 0.05,
        "first_backoff_s": 0.1,
        "settle_s": 0.2,
        "grace_s": 5.0,
        "redis": redis_url,
    }
    options = {**quick, **options}
    config = ScalerConfig(cluster_manager=cluster_manager, **options)
    async with running(Scaler(config)) as mesh.service:
        mesh.stub = scaling.ScalingServiceStub(mesh.channels.get(await mesh.service.ready()))
        try:
            yield mesh
        finally:
            mesh.node.stops.set()
            await mesh.channels.close()
    await mesh.node.stop()
    await mesh.control.stop()


def stopped(mesh: ScalerMesh) -> list[str]:
    """Ids of the instances that the node was told to stop, in that order."""
    return [request.instance_id for request in mesh.node.stopped]
