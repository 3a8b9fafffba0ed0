"""Access, quotas and repetitions put together: what stands between a transport and the dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from rouse_bus import Bus, subjects
from rouse_cache import Answers, Limits
from rouse_common.clock import Clock
from rouse_common.rpc import Channels, RpcServer, call
from rouse_contracts import access
from rouse_gateway import metrics
from rouse_gateway.access.feed import AccessFeed
from rouse_gateway.access.guard import Access
from rouse_gateway.access.quotas import Quotas
from rouse_gateway.config import GatewayConfig
from rouse_gateway.dispatch import Dispatcher
from rouse_gateway.front import FrontDoor
from rouse_gateway.repetitions import Repetitions
from rouse_gateway.service.access import AccessService
from rouse_gateway.state import Routes

CALL_TIMEOUT_S = 5.0
# The newest table says everything; older ones that wait may go.
MAX_PENDING_TABLES = 16


class Entrance:
    """Owns the connections that limits and answers are kept over; see `close`."""

    def __init__(self, config: GatewayConfig, channels: Channels, clock: Clock) -> None:
        self._config, self._channels, self._clock = config, channels, clock
        self._stub: Any = access.AccessServiceStub(channels.get(config.cluster_manager))
        self.guard = Access(clock, required=config.auth)
        self._feed = AccessFeed(self.guard, self._fetch)
        self._limits = Limits.connect(config.redis, lambda away: metrics.LIMITS_ALONE.set(away))
        self._answers = Answers.connect(config.redis)
        self._repetitions: Repetitions | None = None

    async def _fetch(self) -> access.AccessTable:
        answer = await call(self._stub.GetAccessTable, access.GetAccessTableRequest(), timeout_s=CALL_TIMEOUT_S)
        table: access.AccessTable = answer.table
        return table

    def front(self, routes: Routes, dispatcher: Dispatcher, tasks: asyncio.TaskGroup) -> FrontDoor:
        """The dispatcher behind what it is to be kept from."""
        self._repetitions = Repetitions(self._answers, routes, tasks, self._clock)
        return FrontDoor(routes, dispatcher, Quotas(self._limits), self._repetitions)

    def serve(self, server: RpcServer) -> None:
        """Adds AccessService."""
        service = AccessService(
            self._channels, self._config.cluster_manager, self._feed, self._config.default_timeout_s
        )
        server.add(access.add_AccessServiceServicer_to_server, service, access.DESCRIPTOR)

    async def listen(self, bus: Bus) -> None:
        """Hears of changes."""
        await bus.subscribe(subjects.ACCESS, self._feed.receive, max_pending=MAX_PENDING_TABLES)
        bus.on_reconnect(self._feed.refresh)

    async def ready(self) -> None:
        """Returns when callers can be told apart."""
        if self._config.auth:
            await self.guard.loaded.wait()

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """What runs as long as the gateway."""
        return [self._feed.run(), self._limits.run()]

    def stop(self) -> None:
        """Ends what was run on for clients that are gone."""
        if self._repetitions is not None:
            self._repetitions.close()

    async def close(self) -> None:
        await self._limits.close()
        await self._answers.close()
