"""Keeps gpu-server's list of executors equal to the registration table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from rouse_common.errors import RouseError
from rouse_contracts.device import Executor

LOG = logging.getLogger(__name__)


class ExecutorSync:
    """Sends the full list at every change and every `period_s`, so that a restarted gpu-server learns it again.

    Args:
        executors: those that serve now.
        send: delivers the list; raises RouseError where that failed.
    """

    def __init__(
        self,
        executors: Callable[[], Sequence[Executor]],
        send: Callable[[Sequence[Executor]], Awaitable[None]],
        period_s: float,
    ) -> None:
        self._executors, self._send, self._period_s = executors, send, period_s
        self._wanted = 0
        self._changed = asyncio.Event()
        self._sent = 0
        self._sent_more = asyncio.Condition()

    def request(self) -> None:
        """Says that the list is another one now."""
        self._wanted += 1
        self._changed.set()

    async def synced(self) -> None:
        """Requests, and waits until gpu-server has a list that is at least as new as this call."""
        self.request()
        number = self._wanted
        async with self._sent_more:
            await self._sent_more.wait_for(lambda: self._sent >= number)

    async def run(self) -> None:
        """Until cancelled."""
        failing = False
        while True:
            self._changed.clear()
            number = self._wanted
            try:
                await self._send(self._executors())
                if failing:
                    LOG.info("gpu-server knows the executors again")
                failing = False
                async with self._sent_more:
                    self._sent = number
                    self._sent_more.notify_all()
            except RouseError as error:
                if not failing:
                    LOG.warning("executors not synced with gpu-server, trying again: %s", error)
                failing = True
            await self._next(failing)

    async def _next(self, failing: bool) -> None:
        """Waits for a change or for the period; after a failure for a short pause in any case."""
        try:
            if failing:
                await asyncio.sleep(min(0.5, self._period_s))
                return
            async with asyncio.timeout(self._period_s):
                await self._changed.wait()
        except TimeoutError:
            return
