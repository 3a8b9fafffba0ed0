"""Builds the routing table after each change and publishes it; one build at a time, no change forgotten."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from rouse_bus import subjects
from rouse_cluster_manager import metrics
from rouse_common.errors import RouseError
from rouse_contracts import cluster

LOG = logging.getLogger(__name__)
RETRY_S = 0.5


class Publishes(Protocol):
    """What of rouse_bus.Bus is needed here."""

    @property
    def max_payload(self) -> int: ...

    async def publish(self, subject: str, data: bytes) -> None: ...


class RoutingPublisher:
    """Keeps the newest table.

    Args:
        read: builds a table from the database, with a generation above all earlier ones.
        report_delay_s: changes of residency and load wait so long for more of them; others do not wait.
        repeat_s: the table is published again after so long without a change, for those who missed it.
    """

    def __init__(
        self, read: Callable[[], Awaitable[cluster.RoutingTable]], bus: Publishes, *, report_delay_s: float = 0.25,
        repeat_s: float = 5.0,
    ) -> None:  # fmt: skip
        self._read, self._bus = read, bus
        self._report_delay_s, self._repeat_s = report_delay_s, repeat_s
        self._changes = 0
        self._built = -1
        self._table: cluster.RoutingTable | None = None
        self._published = 0
        self._build = asyncio.Lock()
        self._urgent, self._wanted = asyncio.Event(), asyncio.Event()

    def changed(self) -> None:
        """Functions, instances or nodes changed: build and publish now."""
        self._changes += 1
        self._urgent.set()
        self._wanted.set()

    def touched(self) -> None:
        """Residency or load changed: build and publish soon."""
        self._changes += 1
        self._wanted.set()

    def repeat(self) -> None:
        """Publishes the table once more, as after NATS was away."""
        self._published = 0
        self._urgent.set()
        self._wanted.set()

    async def table(self) -> cluster.RoutingTable:
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
        metrics.ROUTING_BUILD.observe(time.perf_counter() - started)
        self._built = changes
        if self._table is not None and await asyncio.to_thread(_same, self._table, fresh):
            return
        self._table = fresh
        metrics.ROUTING_GENERATION.set(fresh.generation)
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
                metrics.PUBLISH_FAILURES.labels("routing").inc()
                if not failing:
                    LOG.warning("routing table not published, trying again every %.1f s: %s", RETRY_S, error)
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

    async def _publish(self, table: cluster.RoutingTable) -> None:
        if table.generation == self._published:
            return
        data = await asyncio.to_thread(table.SerializeToString)
        metrics.ROUTING_BYTES.set(len(data))
        # Too large for a message: an empty one says that there is something to fetch.
        await self._bus.publish(subjects.ROUTING, data if len(data) <= self._bus.max_payload else b"")
        self._published = table.generation


def _same(one: cluster.RoutingTable, other: cluster.RoutingTable) -> bool:
    generation, other.generation = other.generation, one.generation
    same: bool = one == other
    other.generation = generation
    return same
