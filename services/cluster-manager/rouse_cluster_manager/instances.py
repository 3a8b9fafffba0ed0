"""Instances: placed, reported on, given up."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

from rouse_cluster_manager import metrics, placing
from rouse_cluster_manager.adapters import rows
from rouse_cluster_manager.fleet import Fleet
from rouse_cluster_manager.lives import advance
from rouse_cluster_manager.state import REPORT_OF, InstanceState, Report, at
from rouse_common.clock import Clock
from rouse_common.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from rouse_contracts import cluster, functions
from rouse_policy import placement
from rouse_store import Database, Unit
from rouse_store.errors import Conflict
from rouse_store.models import Instance
from rouse_store.text import clean

LOG = logging.getLogger(__name__)
MAX_ISOLATION_CHARS = 1000
# Values of a spec's secrets by environment variable: (unit, tenant, spec).
Resolve: TypeAlias = Callable[[Unit, str, functions.FunctionSpec], dict[str, str]]
RETRY_AFTER_S = 1.0


@dataclass(frozen=True)
class Placed:
    """A new instance and where it has to be started."""

    instance: cluster.Instance
    version: functions.FunctionVersion
    coordinator_address: str
    reason: str
    # By environment variable; not in the representation, which a log may show.
    secrets: Mapping[str, str] = field(repr=False)


class Instances:
    """Args:
    resolve: what the secrets of a version are.
    pending_limit_s, start_limit_s: an instance that is PENDING or STARTING for longer is FAILED.
    """

    def __init__(
        self, database: Database, fleet: Fleet, clock: Clock, resolve: Resolve, *, pending_limit_s: float,
        start_limit_s: float,
    ) -> None:  # fmt: skip
        self._resolve = resolve
        self._database, self._fleet, self._clock = database, fleet, clock
        self._limits_s = {"PENDING": pending_limit_s, "STARTING": start_limit_s}

    async def create(self, version_id: str, reason: str) -> Placed:
        """Places one more instance. The limit holds however many calls come at once.

        Raises NotFound VERSION_NOT_FOUND, ResourceExhausted INSTANCE_LIMIT, Unavailable NO_NODE,
        FailedPrecondition MODEL_TOO_LARGE | SECRET_NOT_FOUND | NO_SECRET_KEY.
        """
        reports, now = self._fleet.reports(), self._clock.now()
        return await self._database.run(
            lambda unit: _create(unit, clean(version_id), clean(reason), reports, self._resolve, now)
        )

    async def report(self, instance_id: str, state: int, reason: str, isolation: str = "") -> None:
        """What became of an instance. Raises NotFound INSTANCE_NOT_FOUND, InvalidArgument BAD_STATE."""
        try:
            report = REPORT_OF[InstanceState(cluster.InstanceState.Name(state).removeprefix("INSTANCE_STATE_"))]
        except (ValueError, KeyError):
            known = ", ".join(known.value for known in REPORT_OF)
            raise InvalidArgument("BAD_STATE", f"state {state} cannot be reported, want one of {known}") from None
        now = self._clock.now()

        def work(unit: Unit) -> None:
            row = unit.instances.get(clean(instance_id), lock=True)
            if row is None:
                raise NotFound("INSTANCE_NOT_FOUND", f"there is no instance '{instance_id}'", instance=instance_id)
            advance(unit, row, report, reason, now)
            row.isolation = clean(isolation[:MAX_ISOLATION_CHARS]) or row.isolation

        await self._database.run(work)

    async def listed(self, function: str, include_ended: bool) -> list[cluster.Instance]:
        found = await self._database.run(lambda unit: unit.instances.listed(clean(function), include_ended))
        return [rows.instance_message(row) for row in found]

    async def expire(self) -> None:
        """Fails the instances that nobody started, or that never became ready."""
        now = self._clock.now()

        def work(unit: Unit) -> None:
            for state, limit_s in self._limits_s.items():
                for row in unit.instances.stuck(state, at(now) - timedelta(seconds=limit_s)):
                    advance(unit, row, Report.BROKE, f"it was {state} for more than {limit_s:g} s", now)

        await self._database.run(work)


def _create(
    unit: Unit, version_id: str, reason: str, reports: placing.Reports, resolve: Resolve, time: float
) -> Placed:
    now = at(time)
    version = unit.functions.version(version_id, lock=True)
    if version is None or version.function.state != "ACTIVE":
        why = "its function is being deleted" if version else "there is no such version"
        raise NotFound("VERSION_NOT_FOUND", f"version '{version_id}': {why}", version=version_id)
    name, message = version.function.name, rows.version_message(version)
    live, limit = unit.instances.live_of_version(version_id), message.spec.scaling.max_instances
    if live >= limit:
        raise ResourceExhausted(
            "INSTANCE_LIMIT", f"function '{name}' has {live} of at most {limit} instances of version {version.version}",
            retry_after_s=RETRY_AFTER_S, function=name,
        )  # fmt: skip
    snapshot = placing.snapshot(unit, version, reports, message.spec.resources.working_memory_bytes, now)
    decision, _ = placement.decide(snapshot, placement.State(), placement.Settings(), time)
    if decision.node_id is None:
        raise _refusal(name, decision)
    node = unit.nodes.get(decision.node_id, lock=True)
    if node is None or node.state != "READY":
        raise Conflict("the node went away meanwhile")
    row = Instance(
        instance_id=secrets.token_hex(6), version_id=version_id, node_id=node.node_id,
        node_incarnation=node.incarnation, state="PENDING", reason=clean(reason), created_at=now, since=now,
        ready_at=None, version=version,
    )  # fmt: skip
    unit.instances.add(row)
    unit.routing_changed = True
    words = f"instance {row.instance_id} of version {version.version} on node {node.node_id}"
    unit.record(now, "instance.created", name, f"{words}: {reason or 'asked for'}; {decision.reason}")
    LOG.info(
        "instance placed function=%s instance=%s node=%s reason=%s",
        name, row.instance_id, node.node_id, decision.reason,
    )  # fmt: skip
    secret_values = resolve(unit, version.function.tenant, message.spec)
    return Placed(rows.instance_message(row), message, node.coordinator_address, decision.reason, secret_values)


def _refusal(function: str, decision: placement.Decision) -> FailedPrecondition | Unavailable:
    assert decision.refusal is not None
    metrics.PLACEMENT_REFUSALS.labels(decision.refusal.value).inc()
    text = f"function '{function}' cannot be placed: {decision.reason}"
    if decision.refusal is placement.Refusal.MODEL_TOO_LARGE:
        return FailedPrecondition("MODEL_TOO_LARGE", text, function=function)
    return Unavailable("NO_NODE", text, retry_after_s=RETRY_AFTER_S, function=function)
