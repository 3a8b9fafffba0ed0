"""Keeps a table of cluster-manager's up to date: fetched at the start, changed by NATS, fetched again now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from rouse_common.errors import RouseError
from rouse_common.tasks import periodically

LOG = logging.getLogger(__name__)

# A message may be lost; then the table is old for so long at most.
REFETCH_S = 5.0
FIRST_FETCH_S = 0.5
# Fetched tables of a lower generation in a row after which we believe that the control plane was set back.
LOWER_BELIEVED = 2

M = TypeVar("M", bound=Message)


class Numbered(Protocol):
    """A table, indexed; the generation grows with every change."""

    @property
    def generation(self) -> int: ...


T = TypeVar("T", bound=Numbered)
T_contra = TypeVar("T_contra", bound=Numbered, contravariant=True)


class Holder(Protocol[T_contra]):
    """Has the table in use. `loaded` is set by the first one."""

    loaded: asyncio.Event

    @property
    def generation(self) -> int: ...

    def apply(self, table: T_contra, *, restored: bool = False) -> bool:
        """Takes a newer table into use and says whether it did; with `restored` any one."""
        ...


class TableFeed(Generic[M, T]):
    """Feeds the holder of a table.

    Args:
        what: the table's name for people, as "routing table".
        message: the table's message as it is published.
        index: makes of a message what the holder takes; runs in a thread.
        fetch: gets the table from cluster-manager. Raises RouseError.
    """

    def __init__(
        self,
        what: str,
        holder: Holder[T],
        message: type[M],
        index: Callable[[M], T],
        fetch: Callable[[], Awaitable[M]],
    ) -> None:
        self._what, self._holder, self._message = what, holder, message
        self._index, self._fetch = index, fetch
        self._lower = 0

    async def refresh(self) -> None:
        """Fetches the table and takes it into use where it is newer. Raises what cluster-manager answered."""
        before = self._holder.generation
        table = await asyncio.to_thread(self._index, await self._fetch())
        # Newer than what is in use, or fetched before that came: both are settled by the generation. Older
        # than what was in use before it was even asked for: cluster-manager lost its past.
        self._lower = self._lower + 1 if table.generation < before else 0
        restored = self._lower >= LOWER_BELIEVED
        if restored:
            LOG.warning(
                "the %s went back from=%d to=%d reason=cluster-manager was set up anew",
                self._what, before, table.generation,
            )  # fmt: skip
            self._lower = 0
        self._holder.apply(table, restored=restored)

    async def receive(self, data: bytes) -> None:
        """A published message: the table, or empty where it is too large for a message."""
        try:
            if data:
                self._holder.apply(await asyncio.to_thread(lambda: self._index(self._message.FromString(data))))
            else:
                await self.refresh()
        except (RouseError, DecodeError) as error:
            LOG.warning("a message with the %s was of no use, fetching it again soon: %s", self._what, error)

    async def run(self) -> None:
        """Fetches the table, at first until there is one, then every REFETCH_S, until cancelled."""
        said = False
        while not self._holder.loaded.is_set():
            try:
                await self.refresh()
            except RouseError as error:
                if not said:
                    LOG.warning("waiting for the %s of cluster-manager: %s", self._what, error)
                said = True
                await self._first_wait()
        await periodically(f"fetching the {self._what}", REFETCH_S, self._step)

    async def _first_wait(self) -> None:
        """Between attempts to get the first table, which a message may bring meanwhile."""
        try:
            async with asyncio.timeout(FIRST_FETCH_S):
                await self._holder.loaded.wait()
        except TimeoutError:
            return

    async def _step(self) -> None:
        await self.refresh()
