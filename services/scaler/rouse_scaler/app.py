"""scaler put together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from prometheus_client import REGISTRY

from rouse_cache import Windows
from rouse_common.clock import SystemClock
from rouse_common.rpc import Channels, RpcServer
from rouse_common.tasks import periodically
from rouse_contracts import scaling as contract
from rouse_scaler.actions import Actions
from rouse_scaler.adapters.control import ControlPlane
from rouse_scaler.adapters.coordinators import Coordinators
from rouse_scaler.config import ScalerConfig
from rouse_scaler.metrics import DecisionCollector
from rouse_scaler.rounds import Rounds
from rouse_scaler.service import ScalingServicer
from rouse_scaler.sleeps import Sleeps
from rouse_scaler.spread import Spread
from rouse_scaler.state import Registry
from rouse_scaler.wakes import Wakes

LOG = logging.getLogger(__name__)

# A start that is under way has its two steps finished before we stop.
SETTLE_S = 2.0


class Scaler:
    """The service: its parts, and their order of starting and stopping."""

    def __init__(self, config: ScalerConfig) -> None:
        self._config = config
        self._max_bytes = config.max_message_mib << 20

    async def run(self, ready: Callable[[str], Awaitable[None]], stopping: asyncio.Event) -> None:
        config, clock, registry = self._config, SystemClock(), Registry()
        channels = Channels(self._max_bytes, config.tls)
        coordinators = Coordinators(self._max_bytes, config.tls)
        windows = Windows.connect(config.redis, clock)
        collector = DecisionCollector(registry.entries)
        REGISTRY.register(collector)
        try:
            async with asyncio.TaskGroup() as tasks:
                control = ControlPlane(channels, config.cluster_manager)
                actions = Actions(control, coordinators, config.grace_s, tasks)
                wakes = Wakes(control, actions, registry, clock, tasks)
                sleeps = Sleeps(control, actions, registry, clock)
                spread = Spread(coordinators, config.spreading(), clock, tasks)
                rounds = Rounds(
                    control, coordinators, windows, actions, registry, spread, config.policy(), config.window_s, clock,
                    tasks,
                )  # fmt: skip
                server = RpcServer(config.listen, max_message_bytes=self._max_bytes, tls=config.tls)
                server.add(
                    contract.add_ScalingServiceServicer_to_server,
                    ScalingServicer(wakes, sleeps, registry),
                    contract.DESCRIPTOR,
                )
                await server.start()
                looking = tasks.create_task(periodically("looking at all functions", config.period_s, rounds.round))
                LOG.info("waiting for cluster-manager address=%s", config.cluster_manager)
                if await self._first_of(rounds.looked, stopping):
                    await server.set_serving(True)
                    await ready(server.address)
                    await stopping.wait()
                await server.stop(config.drain_s)
                looking.cancel()
                await rounds.settle(SETTLE_S)
                actions.cancel()
                spread.cancel()
        finally:
            REGISTRY.unregister(collector)
            await coordinators.close()
            await channels.close()
            await windows.close()

    async def _first_of(self, wanted: asyncio.Event, other: asyncio.Event) -> bool:
        """Waits for either; whether `wanted` is set."""
        waits = [asyncio.ensure_future(event.wait()) for event in (wanted, other)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return wanted.is_set()
