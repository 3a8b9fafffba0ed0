"""comm-broker put together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rouse_bus import Bus, Following
from rouse_comm_broker import service
from rouse_comm_broker.adapters.channels import JobChannels
from rouse_comm_broker.config import CommBrokerConfig
from rouse_comm_broker.registry import Registry
from rouse_comm_broker.service import BrokerService
from rouse_common.clock import SystemClock
from rouse_common.rpc import RpcServer
from rouse_common.tasks import periodically
from rouse_contracts import broker

LOG = logging.getLogger(__name__)


class CommBrokerApp:
    """Owns what lives as long as the process: the connection to NATS, the registry of jobs, the server."""

    def __init__(self, config: CommBrokerConfig) -> None:
        self._config = config

    async def run(self, ready: Callable[[str], Awaitable[None]], stopping: asyncio.Event) -> None:
        """Serves until `stopping` is set, then drains. See rouse_common.lifecycle.App."""
        config, max_bytes = self._config, self._config.max_message_mib << 20
        bus = Bus.open(config.nats, "comm-broker")
        try:
            channels = JobChannels(bus)
            registry = Registry(channels, SystemClock(), config.max_jobs)
            server = RpcServer(config.listen, max_message_bytes=max_bytes, tls=config.tls)
            following = Following(bus, "the jobs", registry.load, server.set_serving)
            handlers = BrokerService(registry, channels, lambda: following.holds, max_bytes)
            server.add(service.register, handlers, broker.DESCRIPTOR)
            await server.start()
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(following.run()),
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
