"""What nodes say of themselves: checked, compared, written."""

from __future__ import annotations

import logging
from datetime import datetime

from rouse_cluster_manager.adapters import rows
from rouse_common.errors import InvalidArgument
from rouse_contracts import cluster, functions
from rouse_store import Unit
from rouse_store.models import DEVICE_KINDS, MAX_BYTES, RESIDENCY_STATES

LOG = logging.getLogger(__name__)

MAX_DEVICES = 64
MAX_HELD_INSTANCES = 10_000
MAX_RESIDENCY = 100_000
MAX_ID_CHARS = 128

# Version, device, tier and size of one entry.
ResidencyKey = tuple[str, str, str, int]
# The same with whether there are tapes.
RoutedKey = tuple[ResidencyKey, bool]
# The same with tapes, the order of magnitude of replays, why requests have no tape, whether the model is heavy and
# whether it was weighed, what was measured of its working memory, and why it is on no device.
WrittenKey = tuple[ResidencyKey, int, int, str, bool, bool, int, str]


def check_node(node: cluster.Node) -> None:
    """Raises InvalidArgument BAD_NODE."""

    def bad(text: str) -> InvalidArgument:
        return InvalidArgument("BAD_NODE", f"node '{node.node_id[:MAX_ID_CHARS]}': {text}")

    for what in ("node_id", "incarnation", "router_address", "link_address", "device_address", "coordinator_address"):
        value = getattr(node, what)
        if not value or len(value) > MAX_ID_CHARS or not value.isprintable():
            raise bad(f"{what} is empty, longer than {MAX_ID_CHARS} characters or not printable")
    names = [device.name for device in node.devices]
    if len(names) > MAX_DEVICES or len(set(names)) != len(names):
        raise bad(f"{len(names)} devices; {MAX_DEVICES} at most, each with a name of its own")
    for device in node.devices:
        if not device.name or len(device.name) > MAX_ID_CHARS or not device.name.isprintable():
            raise bad("a device has a name that is empty, too long or not printable")
        if device.kind not in DEVICE_KINDS:
            raise bad(f"device {device.name} is of kind '{device.kind[:20]}', want {' or '.join(DEVICE_KINDS)}")
        if not 0 < device.capacity_bytes <= MAX_BYTES:
            raise bad(f"device {device.name} has {device.capacity_bytes} bytes")


def check_report(request: cluster.HeartbeatRequest) -> None:
    """Raises InvalidArgument BAD_REPORT."""

    def bad(text: str) -> InvalidArgument:
        return InvalidArgument("BAD_REPORT", f"heartbeat of node '{request.node_id[:MAX_ID_CHARS]}': {text}")

    if len(request.instance_ids) > MAX_HELD_INSTANCES:
        raise bad(f"{len(request.instance_ids)} instances, {MAX_HELD_INSTANCES} at most")
    if len(request.report.residency) > MAX_RESIDENCY:
        raise bad(f"{len(request.report.residency)} entries of residency, {MAX_RESIDENCY} at most")
    texts = [request.node_id, request.incarnation, *request.instance_ids]
    for entry in request.report.residency:
        texts += [entry.version_id, entry.device]
        if entry.state not in RESIDENCY_STATES:
            raise bad(f"residency '{entry.state[:20]}', want one of {', '.join(RESIDENCY_STATES)}")
    if any(len(text) > MAX_ID_CHARS or "\x00" in text for text in texts):
        raise bad(f"an id is longer than {MAX_ID_CHARS} characters or holds a NUL character")


def _tier(state: str) -> str:
    # Whether a model executes changes with every request and matters to nobody but its node.
    return "DEVICE" if state == "EXECUTING" else state


def _place(entry: functions.Residency) -> ResidencyKey:
    return entry.version_id, entry.device, _tier(entry.state), entry.size_bytes


def residency_key(report: cluster.NodeReport) -> frozenset[WrittenKey]:
    """What of a report's residency is worth writing when it changes; of replays, that they have doubled, and of what
    was measured of swaps, what follows from it. Reasons of what is on a device change with every request."""
    return frozenset(
        (
            _place(entry),
            entry.tapes,
            entry.replays.bit_length(),
            entry.eager_reason,
            entry.heavy,
            bool(entry.heaviness),
            entry.measured_working_bytes,
            "" if entry.device else entry.reason,
        )
        for entry in report.residency
        if entry.state != "ABSENT"
    )


def routing_view(report: cluster.NodeReport) -> tuple[frozenset[RoutedKey], int]:
    """What of a report gateways look at."""
    held = [entry for entry in report.residency if entry.state != "ABSENT"]
    return frozenset((_place(entry), entry.tapes > 0) for entry in held), report.queued_requests


def write_residency(unit: Unit, request: cluster.HeartbeatRequest, now: datetime) -> None:
    """Writes what a node holds; orders it to drop versions that are not known."""
    held = {(entry.version_id, entry.device): entry for entry in request.report.residency if entry.state != "ABSENT"}
    known = unit.functions.known_versions({version_id for version_id, _ in held})
    unit.nodes.replace_placements(
        request.node_id,
        [rows.placement_row(request.node_id, entry) for (version_id, _), entry in held.items() if version_id in known],
    )
    orphans = sorted({version_id for version_id, _ in held} - known.keys())
    unit.nodes.order_drops(
        [
            {"node_id": request.node_id, "version_id": v, "artefact_digest": "", "function": "", "ordered_at": now}
            for v in orphans
        ]
    )
    if orphans:
        LOG.info("node holds versions that are not known node=%s versions=%s", request.node_id, ",".join(orphans))
