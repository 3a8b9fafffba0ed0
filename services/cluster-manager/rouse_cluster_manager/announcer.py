"""Publishes events after they were written."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from rouse_bus import subjects
from rouse_cluster_manager import metrics
from rouse_cluster_manager.publisher import Publishes
from rouse_common.errors import RouseError
from rouse_contracts import functions

LOG = logging.getLogger(__name__)
MAX_WAITING = 1000
RETRY_S = 0.5


class Announcer:
    """Events on their way to NATS. While it is away the newest MAX_WAITING wait; all are in the database."""

    def __init__(self, bus: Publishes) -> None:
        self._bus = bus
        self._waiting: deque[functions.Event] = deque()
        self._some, self._none = asyncio.Event(), asyncio.Event()
        self._none.set()
        self._failing = False

    def add(self, event: functions.Event) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            metrics.EVENTS_DROPPED.inc()
        self._waiting.append(event)
        self._none.clear()
        self._some.set()

    async def flush(self, timeout_s: float) -> None:
        """Waits until nothing waits, `timeout_s` at most; not at all while NATS is away."""
        try:
            async with asyncio.timeout(0 if self._failing else timeout_s):
                await self._none.wait()
        except TimeoutError:
            LOG.warning("events not published count=%d reason=stopping; they are in the database", len(self._waiting))

    async def run(self) -> None:
        """Publishes in order until cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                event = self._waiting[0]
                try:
                    await self._bus.publish(subjects.event(event.kind), event.SerializeToString())
                except RouseError as error:
                    metrics.PUBLISH_FAILURES.labels("events").inc()
                    if not self._failing:
                        LOG.warning("events not published, trying again every %.1f s: %s", RETRY_S, error)
                    self._failing = True
                    await asyncio.sleep(RETRY_S)
                    continue
                self._failing = False
                if self._waiting and self._waiting[0] is event:
                    self._waiting.popleft()
            self._none.set()
