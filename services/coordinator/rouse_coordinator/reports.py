"""What became of instances, told to cluster-manager until it has heard it, in order for each instance."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from rouse_common.errors import NotFound, RouseError
from rouse_contracts.cluster import ReportInstanceRequest

LOG = logging.getLogger(__name__)

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 5.0
# A row of the registration table has so few states that this is never reached by a working coordinator.
MAX_PER_INSTANCE = 8

Send = Callable[[ReportInstanceRequest], Awaitable[None]]


class Reports:
    """Delivers reports; one at a time for each instance, instances beside each other.

    Args:
        send: delivers one; raises RouseError where that failed.
        group: owns the deliveries.
    """

    def __init__(self, send: Send, group: asyncio.TaskGroup) -> None:
        self._send, self._group = send, group
        self._waiting: dict[str, deque[ReportInstanceRequest]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def undelivered(self) -> frozenset[str]:
        """Instances of which cluster-manager does not know the latest yet."""
        return frozenset(self._waiting)

    def add(self, report: ReportInstanceRequest) -> None:
        """Queues a report behind the instance's earlier ones."""
        queue = self._waiting.get(report.instance_id)
        if queue is not None:
            assert len(queue) < MAX_PER_INSTANCE, f"{report.instance_id} has more reports than states"
            queue.append(report)
            return
        self._waiting[report.instance_id] = deque([report])
        self._idle.clear()
        self._group.create_task(self._deliver(report.instance_id), name=f"reports of {report.instance_id}")

    async def delivered(self, timeout_s: float) -> bool:
        """Waits until nothing is left to deliver; False where that takes longer than `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _deliver(self, instance_id: str) -> None:
        queue, delay_s, failed = self._waiting[instance_id], FIRST_DELAY_S, False
        while queue:
            try:
                await self._send(queue[0])
            except NotFound as error:
                LOG.warning("report dropped instance=%s reason=%s", instance_id, error)
            except RouseError as error:
                if not failed:
                    LOG.warning("report not delivered, trying again instance=%s reason=%s", instance_id, error)
                failed = True
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, LONGEST_DELAY_S)
                continue
            queue.popleft()
        del self._waiting[instance_id]
        if not self._waiting:
            self._idle.set()
