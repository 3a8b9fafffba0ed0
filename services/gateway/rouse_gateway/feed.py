"""Keeps the routing table up to date, and waits for what it is to say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rouse_common.errors import DeadlineExceeded, Unavailable
from rouse_contracts.cluster import RoutingTable
from rouse_gateway.state import Routes, Table, index
from rouse_gateway.table_feed import TableFeed

LOG = logging.getLogger(__name__)

KNOWN_POLL_S = 0.1


class RoutingFeed(TableFeed[RoutingTable, Table]):
    """Feeds the routes.

    Args:
        fetch: gets the table from cluster-manager. Raises RouseError.
        after: runs behind every periodic fetch.
    """

    def __init__(
        self,
        routes: Routes,
        fetch: Callable[[], Awaitable[RoutingTable]],
        after: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__("routing table", routes, RoutingTable, index, fetch)
        self._routes, self._after = routes, after

    async def _step(self) -> None:
        await self.refresh()
        await self._after()

    async def catch_up(self, what: str, timeout_s: float) -> None:
        """Returns once the table in use has every change that cluster-manager had made when this was called.
        Raises DeadlineExceeded after `timeout_s`."""
        fetched = False

        async def fetch() -> None:
            nonlocal fetched
            await self.refresh()
            fetched = True

        await self._repeat(fetch, lambda: fetched, f"the gateway knows {what}", timeout_s)

    async def until(self, there: Callable[[Table], bool], what: str, timeout_s: float) -> None:
        """Returns once `there` holds for the table in use. Raises DeadlineExceeded after `timeout_s`."""
        await self._repeat(self.refresh, lambda: there(self._routes.table), what, timeout_s)

    async def _repeat(
        self, fetch: Callable[[], Awaitable[None]], done: Callable[[], bool], what: str, timeout_s: float
    ) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not done():
                    try:
                        await fetch()
                    except (Unavailable, DeadlineExceeded) as error:
                        LOG.info("waiting until %s: %s", what, error)
                    if not done():
                        await self._routes.change(KNOWN_POLL_S)
        except TimeoutError:
            raise DeadlineExceeded(
                "DEADLINE_EXCEEDED", f"it took longer than {timeout_s:.3g} s until {what}; it will happen still"
            ) from None
