"""Keeps the routing table up to date: fetched at the start, changed by NATS, fetched again now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError

from rouse_common.errors import DeadlineExceeded, RouseError, Unavailable
from rouse_common.tasks import periodically
from rouse_contracts.cluster import RoutingTable
from rouse_gateway.state import Routes, Table, index

LOG = logging.getLogger(__name__)

# A message may be lost; then the table is old for so long at most.
REFETCH_S = 5.0
FIRST_FETCH_S = 0.5
# Fetched tables of a lower generation in a row after which we believe that the control plane was set back.
LOWER_BELIEVED = 2
KNOWN_POLL_S = 0.1


class RoutingFeed:
    """Feeds the routes.

    Args:
        fetch: gets the table from cluster-manager. Raises RouseError.
    """

    def __init__(self, routes: Routes, fetch: Callable[[], Awaitable[RoutingTable]]) -> None:
        self._routes = routes
        self._fetch = fetch
        self._lower = 0

    async def refresh(self) -> None:
        """Fetches the table and takes it into use where it is newer. Raises what cluster-manager answered."""
        before = self._routes.table.generation
        table = await asyncio.to_thread(index, await self._fetch())
        # Newer than what is in use, or fetched before that came: both are settled by the generation. Older
        # than what was in use before it was even asked for: cluster-manager lost its past.
        self._lower = self._lower + 1 if table.generation < before else 0
        restored = self._lower >= LOWER_BELIEVED
        if restored:
            LOG.warning(
                "the routing table went back from=%d to=%d reason=cluster-manager was set up anew",
                before,
                table.generation,
            )
            self._lower = 0
        self._routes.apply(table, restored=restored)

    async def receive(self, data: bytes) -> None:
        """A message on rouse.routing: the table, or empty where it is too large for a message."""
        try:
            if data:
                self._routes.apply(await asyncio.to_thread(_decode, data))
            else:
                await self.refresh()
        except (RouseError, DecodeError) as error:
            LOG.warning("a message with the routing table was of no use, fetching it again soon: %s", error)

    async def run(self, after: Callable[[], Awaitable[None]]) -> None:
        """Fetches the table, at first until there is one, then every REFETCH_S with `after` behind it, until
        cancelled."""
        said = False
        while not self._routes.loaded.is_set():
            try:
                await self.refresh()
            except RouseError as error:
                if not said:
                    LOG.warning("waiting for the routing table of cluster-manager: %s", error)
                said = True
                await self._routes.change(FIRST_FETCH_S)

        async def step() -> None:
            await self.refresh()
            await after()

        await periodically("fetching the routing table", REFETCH_S, step)

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


def _decode(data: bytes) -> Table:
    return index(RoutingTable.FromString(data))
