"""Keeps the access table up to date: fetched at the start, changed by NATS, fetched again now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError

from rouse_common.errors import RouseError
from rouse_common.tasks import periodically
from rouse_contracts.access import AccessTable
from rouse_gateway.access.guard import Access
from rouse_gateway.access.table import index

LOG = logging.getLogger(__name__)
# A message may be lost; then a key that was revoked is known for so long at most.
REFETCH_S = 5.0
FIRST_FETCH_S = 0.5
# Fetched tables of a lower generation in a row after which we believe that the control plane was set back.
LOWER_BELIEVED = 2


class AccessFeed:
    """Feeds the guard.

    Args:
        fetch: gets the table from cluster-manager. Raises RouseError.
    """

    def __init__(self, guard: Access, fetch: Callable[[], Awaitable[AccessTable]]) -> None:
        self._guard = guard
        self._fetch = fetch
        self._lower = 0

    async def refresh(self) -> None:
        """Fetches the table and takes it into use where it is newer. Raises what cluster-manager answered."""
        before = self._guard.generation
        table = await asyncio.to_thread(index, await self._fetch())
        self._lower = self._lower + 1 if table.generation < before else 0
        restored = self._lower >= LOWER_BELIEVED
        if restored:
            LOG.warning(
                "the access table went back from=%d to=%d reason=cluster-manager was set up anew",
                before, table.generation,
            )  # fmt: skip
            self._lower = 0
        self._guard.apply(table, restored=restored)

    async def receive(self, data: bytes) -> None:
        """A message on rouse.access: the table, or empty where it is too large for a message."""
        try:
            if data:
                self._guard.apply(await asyncio.to_thread(lambda: index(AccessTable.FromString(data))))
            else:
                await self.refresh()
        except (RouseError, DecodeError) as error:
            LOG.warning("a message with the access table was of no use, fetching it again soon: %s", error)

    async def run(self) -> None:
        """Fetches the table, at first until there is one, then every REFETCH_S, until cancelled."""
        said = False
        while not self._guard.loaded.is_set():
            try:
                await self.refresh()
            except RouseError as error:
                if not said:
                    LOG.warning("waiting for the access table of cluster-manager: %s", error)
                said = True
                await asyncio.sleep(FIRST_FETCH_S)
        await periodically("fetching the access table", REFETCH_S, self.refresh)
