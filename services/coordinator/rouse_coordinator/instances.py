"""The instances of the node, for those who start, stop and are them."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

from rouse_common.clock import Clock
from rouse_common.errors import NotFound, PermissionDenied, Unavailable
from rouse_contracts.coordination import GetAssignmentResponse, ReportLoadedRequest
from rouse_contracts.functions import FunctionVersion
from rouse_coordinator import metrics
from rouse_coordinator.life import Life, Living, StopRequest
from rouse_coordinator.reports import Reports
from rouse_coordinator.table import RegistrationTable


class Instances:
    """Starts and stops instances.

    Args:
        group: owns one task an instance.
    """

    def __init__(
        self,
        node_id: str,
        table: RegistrationTable,
        living: Living,
        reports: Reports,
        group: asyncio.TaskGroup,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._node_id, self._table, self._living = node_id, table, living
        self._reports, self._group = reports, group
        self._lives: dict[str, Life] = {}
        self._closed = False
        metrics.INSTANCE_CAPACITY.set(table.max_instances)

    def start(self, instance_id: str, version: FunctionVersion, secrets: Mapping[str, str]) -> None:
        """Accepts an instance and starts it in the background; one that is known already is left as it is.

        The values of its secrets are kept in memory until it has ended, for it alone.

        Raises ResourceExhausted INSTANCE_LIMIT, Unavailable STOPPING.
        """
        if self._closed:
            raise Unavailable("STOPPING", f"the coordinator of node {self._node_id} is stopping")
        if not self._table.add(instance_id, version):
            return
        life = self._lives[instance_id] = Life(version, self._clock.monotonic(), secrets)
        self._group.create_task(self._run(instance_id, life), name=f"instance {instance_id}")

    async def stop(self, instance_id: str, grace_s: float, reason: str) -> None:
        """Ends an instance; returns when its process is gone. One that is not there is left at that."""
        life = self._lives.get(instance_id)
        if life is None:
            return
        if not life.stop.done():
            life.stop.set_result(StopRequest(grace_s, reason))
        await life.done.wait()

    async def stop_all(self, grace_s: float, reason: str) -> None:
        """Accepts no more, and ends all instances beside each other."""
        self._closed = True
        await asyncio.gather(*(self.stop(instance_id, grace_s, reason) for instance_id in list(self._lives)))

    async def assignment(self, instance_id: str, token: str) -> GetAssignmentResponse:
        """What an instance is to run, once it is on the node. Raises PermissionDenied BAD_TOKEN, NotFound."""
        life = self._authenticate(instance_id, token)
        either: list[asyncio.Future[Any]] = [life.assignment, life.stop]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not life.assignment.done() or life.assignment.cancelled():
            raise NotFound("INSTANCE_NOT_FOUND", f"instance {instance_id} is being stopped", instance=instance_id)
        return life.assignment.result()

    def loaded(self, report: ReportLoadedRequest) -> None:
        """Takes an instance's report. Raises PermissionDenied BAD_TOKEN."""
        life = self._authenticate(report.instance_id, report.token)
        if not life.loaded.done():
            life.loaded.set_result(report)

    def live_ids(self) -> Sequence[str]:
        """Instances that are not ended, and ended ones of which cluster-manager has not heard yet."""
        live = [row.instance_id for row in self._table.rows() if not row.terminal]
        return [*live, *sorted(self._reports.undelivered - set(live))]

    def _authenticate(self, instance_id: str, token: str) -> Life:
        life = self._lives.get(instance_id)
        if life is None or not hmac.compare_digest(life.token.encode(), token.encode()):
            raise PermissionDenied("BAD_TOKEN", "that is not the token of a running instance")
        return life

    async def _run(self, instance_id: str, life: Life) -> None:
        try:
            await self._living.run(instance_id, life)
        finally:
            del self._lives[instance_id]
            life.done.set()
