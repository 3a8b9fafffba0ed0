"""The registration table as others see it: every change is told to gpu-server and cluster-manager."""

from __future__ import annotations

import asyncio
import logging

from rouse_contracts.cluster import InstanceState, ReportInstanceRequest
from rouse_contracts.device import Executor
from rouse_coordinator import metrics
from rouse_coordinator.reports import Reports
from rouse_coordinator.sync import ExecutorSync
from rouse_coordinator.table import Event, RegistrationTable, State

LOG = logging.getLogger(__name__)

MAX_REASON_CHARS = 1500
MAX_ISOLATION_CHARS = 1000
REPORTED = {
    State.STARTING: InstanceState.INSTANCE_STATE_STARTING,
    State.READY: InstanceState.INSTANCE_STATE_READY,
    State.STOPPING: InstanceState.INSTANCE_STATE_STOPPING,
    State.ENDED: InstanceState.INSTANCE_STATE_ENDED,
    State.FAILED: InstanceState.INSTANCE_STATE_FAILED,
}


class Registry:
    """Moves rows on.

    Args:
        group: owns what is told later.
    """

    def __init__(
        self, table: RegistrationTable, sync: ExecutorSync, reports: Reports, group: asyncio.TaskGroup
    ) -> None:
        self.table, self._sync, self._reports, self._group = table, sync, reports, group

    def move(
        self,
        instance_id: str,
        event: Event,
        reason: str,
        *,
        pid: int | None = None,
        address: str = "",
        isolation: str = "",
    ) -> None:
        """Applies an event to a row. Raises IllegalTransition."""
        reason = reason[:MAX_REASON_CHARS]
        row = self.table.apply(
            instance_id, event, reason, pid=pid, address=address, isolation=isolation[:MAX_ISOLATION_CHARS]
        )
        self._count()
        level = logging.WARNING if row.state is State.FAILED else logging.INFO
        LOG.log(
            level, "instance %s function=%s instance=%s reason=%s",
            row.state.value.lower(), row.function, instance_id, reason,
        )  # fmt: skip
        report = ReportInstanceRequest(
            instance_id=instance_id, state=REPORTED[row.state], reason=reason, isolation=row.isolation
        )
        if event is Event.SPAWNED:
            return  # nothing that others do not know: it was STARTING before
        if row.state is State.READY:
            self._group.create_task(self._report_ready(report), name=f"ready {instance_id}")
            return
        self._sync.request()
        self._reports.add(report)

    async def _report_ready(self, report: ReportInstanceRequest) -> None:
        """gpu-server has to know an executor before a gateway routes to it."""
        await self._sync.synced()
        row = self.table.get(report.instance_id)
        if row is not None and row.state is State.READY:
            self._reports.add(report)

    def _count(self) -> None:
        counts = dict.fromkeys(State, 0)
        for row in self.table.rows():
            counts[row.state] += 1
        for state, count in counts.items():
            metrics.INSTANCES.labels(state.value).set(count)


def executors_of(table: RegistrationTable) -> list[Executor]:
    """The executors that serve now, as gpu-server wants them."""
    return [
        Executor(instance_id=row.instance_id, version=row.version, address=row.address, pid=row.pid)
        for row in table.rows()
        if row.state is State.READY
    ]
