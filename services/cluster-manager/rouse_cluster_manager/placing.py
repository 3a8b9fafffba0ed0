"""What the placement policy looks at, gathered from the database and the nodes' reports."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from rouse_contracts import cluster
from rouse_policy.placement import DeviceView, NodeView, Snapshot, Tier
from rouse_store import Unit
from rouse_store.models import Node, Version

FAILURE_WINDOW_S = 60.0
TIERS = {
    "DISK": Tier.DISK,
    "HOST": Tier.HOST,
    "SWAPPING_IN": Tier.DEVICE,
    "DEVICE": Tier.DEVICE,
    "EXECUTING": Tier.DEVICE,
}
Reports = Mapping[str, cluster.NodeReport]


def node_views(nodes: list[Node], reports: Reports) -> tuple[NodeView, ...]:
    """Nodes and their devices, as far as that does not depend on a version."""
    return tuple(_view(node, reports.get(node.node_id)) for node in nodes)


def snapshot(unit: Unit, version: Version, reports: Reports, working_memory_bytes: int, now: datetime) -> Snapshot:
    """The mesh as it is for one more instance of a version that was read with its artefact."""
    nodes = unit.nodes.all()
    sharing = unit.functions.sharing_artefact(version.artefact_digest)
    written = unit.nodes.placements(version_ids=sharing)
    live = unit.instances.live_by_node()
    coming = unit.instances.weights_on_their_way()
    failed = unit.instances.failed_starts(version.version_id, now - timedelta(seconds=FAILURE_WINDOW_S))
    views = []
    for node in nodes:
        report = reports.get(node.node_id)
        if report is not None:
            states = [(entry.version_id, entry.state) for entry in report.residency if entry.version_id in sharing]
        else:
            states = [(p.version_id, p.state) for p in written if p.node_id == node.node_id]
        pending = _pending_bytes(unit, report, coming.get(node.node_id, {}))
        base = _view(node, report)
        counts = live.get(node.node_id, {})
        views.append(
            NodeView(
                node_id=base.node_id,
                ready=base.ready,
                devices=base.devices,
                tier=max((TIERS.get(state, Tier.ABSENT) for _, state in states), default=Tier.ABSENT),
                host_capacity_bytes=base.host_capacity_bytes,
                host_free_bytes=max(0, base.host_free_bytes - pending),
                load=base.load,
                instances=sum(counts.values()),
                same_version=counts.get(version.version_id, 0),
                failed_starts=failed.get(node.node_id, 0),
            )
        )
    return Snapshot(
        function=version.function.name,
        weights_bytes=version.artefact.weights_bytes,
        working_memory_bytes=working_memory_bytes,
        nodes=tuple(views),
    )


def _pending_bytes(unit: Unit, report: cluster.NodeReport | None, coming: Mapping[str, int]) -> int:
    """Host memory that starts under way will take and that the node's report does not count yet."""
    if not coming or report is None:
        return sum(coming.values())
    staged = {entry.version_id for entry in report.residency if TIERS.get(entry.state, Tier.ABSENT) >= Tier.HOST}
    counted = set(unit.functions.known_versions(staged).values())
    return sum(size for digest, size in coming.items() if digest not in counted)


def _view(node: Node, report: cluster.NodeReport | None) -> NodeView:
    used = {} if report is None else {d.name: d.mapped_bytes + d.reserved_bytes for d in report.devices}
    return NodeView(
        node_id=node.node_id,
        ready=node.state == "READY",
        devices=tuple(
            DeviceView(d.name, d.capacity_bytes, max(0, d.capacity_bytes - used.get(d.name, 0))) for d in node.devices
        ),
        host_capacity_bytes=0 if report is None else report.host_capacity_bytes,
        host_free_bytes=0 if report is None else max(0, report.host_capacity_bytes - report.host_used_bytes),
        load=0 if report is None else report.queued_requests + report.executing_requests,
    )
