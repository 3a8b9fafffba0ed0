"""comm-broker put together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rouse_bus import Bus
from rouse_comm_broker import service
from rouse_comm_broker.adapters.channels import JobChannels
from rouse_comm_broker.config import CommBrokerConfig
from rouse_comm_broker.registry import Registry
from rouse_comm_broker.service import BrokerService
from rouse_common.clock import SystemClock
from rouse_common.errors import RouseError
from rouse_common.rpc import RpcServer
from rouse_common.tasks import periodically
from rouse_contracts import broker

LOG = logging.getLogger(__name__)
LOAD_AGAIN_S = 1.0


class CommBrokerApp:
    """Owns what lives as long as the process: the connection to NATS, the registry of jobs, the server."""

    def __init__(self, config: CommBrokerConfig) -> None:
        self._config = config
        self._loaded = False

    async def run(self, ready: Callable[[str], Awaitable[None]], stopping: asyncio.Event) -> None:
        """Serves until `stopping` is set, then drains. See rouse_common.lifecycle.App."""
        config, max_bytes = self._config, self._config.max_message_mib << 20
        bus = Bus.open(config.nats, "comm-broker")
        try:
            channels = JobChannels(bus)
            registry = Registry(channels, SystemClock(), config.max_jobs)
            server = RpcServer(config.listen, max_message_bytes=max_bytes, tls=config.tls)
            handlers = BrokerService(registry, channels, lambda: self._loaded and bus.connected, max_bytes)
            server.add(service.register, handlers, broker.DESCRIPTOR)
            await server.start()
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(self._follow(bus, registry, server)),
                    tasks.create_task(periodically("deleting expired jobs", config.expiry_period_s, registry.expire)),
                ]
                try:
                    await ready(server.address)
                    await stopping.wait()
                finally:
                    # Before the drain, so that nothing sets it to serving again.
                    for task in background:
                        task.cancel()
                    await server.stop(config.drain_s)
        finally:
            await bus.close()

    async def _follow(self, bus: Bus, registry: Registry, server: RpcServer) -> None:
        """Serves while NATS is there and the registry is true to it."""
        while True:
            await bus.wait_connected()
            try:
                await registry.load()
            except RouseError as error:
                LOG.warning("cannot read the jobs, trying again: %s", error)
                await asyncio.sleep(LOAD_AGAIN_S)
                continue
            self._loaded = True
            await server.set_serving(True)
            await bus.wait_disconnected()
            self._loaded = False
            await server.set_serving(False)
