"""One place where an instance's row changes its state, with the event that tells of it."""

from __future__ import annotations

import logging

from rouse_cluster_manager import metrics
from rouse_cluster_manager.state import TERMINAL, InstanceState, Report, at, machine
from rouse_store import Unit
from rouse_store.models import Instance
from rouse_store.text import clean

LOG = logging.getLogger(__name__)
# A state of passage is no news; its end is.
SILENT = (InstanceState.STARTING,)


def advance(unit: Unit, row: Instance, report: Report, reason: str, now: float) -> bool:
    """Changes a locked row that was read with its version and function; False where the report changes
    nothing: terminal states stay, and a report that came late or twice is none."""
    before = machine(row.instance_id, row.state, row.reason, row.since)
    if not before.allows(report):
        LOG.debug("report ignored instance=%s state=%s report=%s", row.instance_id, row.state, report.name)
        return False
    after = before.after(report, clean(reason), now)
    row.state, row.reason, row.since = after.state.value, after.reason, at(now)
    if after.state is InstanceState.READY:
        row.ready_at = at(now)
    unit.routing_changed = True
    function = row.version.function.name
    if after.state not in SILENT:
        words = f"instance {row.instance_id} of version {row.version.version} on node {row.node_id}"
        unit.record(at(now), f"instance.{row.state.lower()}", function, f"{words}: {after.reason}")
    if after.state in TERMINAL:
        metrics.INSTANCE_ENDS.labels(row.state).inc()
    LOG.info(
        "instance %s function=%s instance=%s node=%s reason=%s",
        row.state.lower(), function, row.instance_id, row.node_id, after.reason,
    )  # fmt: skip
    return True
