"""Builds a table after each change and publishes it; one build at a time, no change forgotten."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from prometheus_client import Gauge, Histogram

from rouse_bus import subjects
from rouse_cluster_manager import metrics
from rouse_common.errors import RouseError
from rouse_contracts import access, cluster

LOG = logging.getLogger(__name__)
RETRY_S = 0.5


class Publishes(Protocol):
    """What of rouse_bus.Bus is needed here."""

    @property
    def max_payload(self) -> int: ...

    async def publish(self, subject: str, data: bytes) -> None: ...


T = TypeVar("T", cluster.RoutingTable, access.AccessTable)


class TablePublisher(Generic[T]):
    """Keeps the newest table.

    Args:
        read: builds a table from the database, with a generation above all earlier ones.
        what: the table, in a word.
        report_delay_s: changes told by `touched` wait so long for more of them; others do not wait.
        repeat_s: the table is published again after so long without a change, for those who missed it.
    """

    def __init__(
        self, read: Callable[[], Awaitable[T]], bus: Publishes, what: str, subject: str, *, build: Histogram,
        generation: Gauge, size: Gauge, report_delay_s: float = 0.25, repeat_s: float = 5.0,
    ) -> None:  # fmt: skip
        self._read: Callable[[], Awaitable[T]] = read
        self._bus = bus
        self._what, self._subject = what, subject
        self._build_time, self._generation, self._size = build, generation, size
        self._report_delay_s, self._repeat_s = report_delay_s, repeat_s
        self._changes = 0
        self._built = -1
        self._table: T | None = None
        self._published = 0
        self._build = asyncio.Lock()
        self._urgent, self._wanted = asyncio.Event(), asyncio.Event()

    def changed(self) -> None:
        """What people change, or what lives, is another: build and publish now."""
        self._changes += 1
        self._urgent.set()
        self._wanted.set()

    def touched(self) -> None:
        """A report changed: build and publish soon."""
        self._changes += 1
        self._wanted.set()

    def repeat(self) -> None:
        """Publishes the table once more, as after NATS was away."""
        self._published = 0
        self._urgent.set()
        self._wanted.set()

    async def table(self) -> T:
        """The table with every change that was known when this was called. Raises what `read` raises."""
        wanted = self._changes
        async with self._build:
            if self._table is None or self._built < wanted:
                await self._rebuild()
            assert self._table is not None
            return self._table

    async def _rebuild(self) -> None:
        changes, started = self._changes, time.perf_counter()
        fresh = await self._read()
        self._build_time.observe(time.perf_counter() - started)
        self._built = changes
        if self._table is not None and await asyncio.to_thread(_same, self._table, fresh):
            return
        self._table = fresh
        self._generation.set(fresh.generation)
        self._wanted.set()

    async def run(self) -> None:
        """Builds and publishes until cancelled."""
        failing = False
        while True:
            await self._next_change()
            self._wanted.clear()
            self._urgent.clear()
            try:
                await self._publish(await self.table())
                failing = False
            except RouseError as error:
                metrics.PUBLISH_FAILURES.labels(self._what).inc()
                if not failing:
                    LOG.warning("%s table not published, trying again every %.1f s: %s", self._what, RETRY_S, error)
                failing = True
                await asyncio.sleep(RETRY_S)
                self._wanted.set()
                self._urgent.set()

    async def _next_change(self) -> None:
        try:
            async with asyncio.timeout(self._repeat_s):
                await self._wanted.wait()
        except TimeoutError:
            self._published = 0
            return
        try:
            async with asyncio.timeout(self._report_delay_s):
                await self._urgent.wait()
        except TimeoutError:
            return

    async def _publish(self, table: T) -> None:
        if table.generation == self._published:
            return
        data = await asyncio.to_thread(table.SerializeToString)
        self._size.set(len(data))
        # Too large for a message: an empty one says that there is something to fetch.
        await self._bus.publish(self._subject, data if len(data) <= self._bus.max_payload else b"")
        self._published = table.generation


class RoutingPublisher(TablePublisher[cluster.RoutingTable]):
    def __init__(
        self, read: Callable[[], Awaitable[cluster.RoutingTable]], bus: Publishes, *, report_delay_s: float = 0.25,
        repeat_s: float = 5.0,
    ) -> None:  # fmt: skip
        super().__init__(
            read, bus, "routing", subjects.ROUTING, build=metrics.ROUTING_BUILD, generation=metrics.ROUTING_GENERATION,
            size=metrics.ROUTING_BYTES, report_delay_s=report_delay_s, repeat_s=repeat_s,
        )  # fmt: skip


class AccessPublisher(TablePublisher[access.AccessTable]):
    def __init__(self, read: Callable[[], Awaitable[access.AccessTable]], bus: Publishes) -> None:
        super().__init__(
            read, bus, "access", subjects.ACCESS, build=metrics.ACCESS_BUILD, generation=metrics.ACCESS_GENERATION,
            size=metrics.ACCESS_BYTES,
        )  # fmt: skip


def _same(one: T, other: T) -> bool:
    generation, other.generation = other.generation, one.generation
    same: bool = one == other
    other.generation = generation
    return same
