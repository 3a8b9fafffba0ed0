"""The routing table: built from the database, complete, its generation rising.

Generations come from a sequence of the database. The table is built from the database anyway, so asking it
costs nothing more; and unlike a clock or a counter in memory a sequence rises over restarts and over
changes of the machine's time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from rouse_cluster_manager import metrics, shares
from rouse_cluster_manager.adapters import rows
from rouse_cluster_manager.state import function_state
from rouse_contracts import cluster, functions
from rouse_contracts.tapes import counts
from rouse_store import Unit
from rouse_store.models import Function, Instance, Node, Placement, Version

# A function with more versions than these keeps the newest in the table, and those with live instances or traffic.
ROUTED_VERSIONS = 16
CACHED_VERSIONS = 20_000


class VersionCache:
    """Versions as messages; they never change, and making one takes longer than everything else."""

    def __init__(self) -> None:
        self._messages: OrderedDict[str, functions.FunctionVersion] = OrderedDict()

    def of(self, function: Function) -> dict[str, functions.FunctionVersion]:
        return {row.version_id: self._message(row) for row in function.versions}

    def _message(self, row: Version) -> functions.FunctionVersion:
        message = self._messages.get(row.version_id)
        if message is None:
            message = self._messages[row.version_id] = rows.version_message(row)
            if len(self._messages) > CACHED_VERSIONS:
                self._messages.popitem(last=False)
        return message


def read(unit: Unit, reports: Mapping[str, cluster.NodeReport], cache: VersionCache) -> cluster.RoutingTable:
    """The table as the database has it in this transaction, which must be REPEATABLE READ."""
    found, instances = unit.functions.all(), unit.instances.live_and_latest()
    nodes = unit.nodes.all()
    table = build(found, instances, nodes, unit.nodes.placements(), reports, cache)
    table.generation = unit.next_generation()
    _observe(found, instances, nodes)
    return table


def build(
    found: Iterable[Function],
    instances: Iterable[Instance],
    nodes: Iterable[Node],
    placements: Iterable[Placement],
    reports: Mapping[str, cluster.NodeReport],
    cache: VersionCache,
) -> cluster.RoutingTable:
    """The table without its generation. Only READY instances on READY nodes, and no function that is being
    deleted, are in it."""
    ready_nodes = {node.node_id: node for node in nodes if node.state == "READY"}
    by_version: dict[str, list[Instance]] = {}
    for row in instances:
        by_version.setdefault(row.version_id, []).append(row)
    tapes = counts(report for node_id, report in reports.items() if node_id in ready_nodes)
    table = cluster.RoutingTable()
    for function in found:
        if function.state == "ACTIVE":
            table.functions.append(_function_route(function, by_version, ready_nodes, cache, tapes))
    routed = {version.version_id for route in table.functions for version in route.versions}
    written: dict[str, list[functions.Residency]] = {}
    for placement in placements:
        written.setdefault(placement.node_id, []).append(rows.residency_message(placement))
    for node_id, node in sorted(ready_nodes.items()):
        report = reports.get(node_id)
        residency = written.get(node_id, []) if report is None else report.residency
        table.nodes.append(
            cluster.NodeRoute(
                node_id=node_id,
                router_address=node.router_address,
                link_address=node.link_address,
                queued_requests=0 if report is None else report.queued_requests,
                residency=[entry for entry in residency if entry.version_id in routed and entry.state != "ABSENT"],
            )
        )
    return table


def _function_route(
    function: Function,
    by_version: Mapping[str, list[Instance]],
    ready_nodes: Mapping[str, Node],
    cache: VersionCache,
    tapes: Mapping[str, int],
) -> cluster.FunctionRoute:
    messages, active_id = cache.of(function), function.active.version_id
    live = {v for v in messages if any(row.state in ("READY", "STARTING", "PENDING") for row in by_version.get(v, []))}
    live |= {version.version_id for version in shares.beside_active(function)}
    shown = [v for v in list(messages)[-ROUTED_VERSIONS:] if v != active_id]
    shown = [v for v in messages if v in live and v not in shown and v != active_id] + shown
    shown.append(active_id)
    state, reason = _state(by_version.get(active_id, []), tapes.get(active_id, 0))
    return cluster.FunctionRoute(
        name=function.name,
        tenant=function.tenant,
        state=state,
        reason=reason,
        versions=[messages[v] for v in shown],
        active_version_id=active_id,
        traffic=shares.messages(function),
        version_states=[_version_state(v, by_version[v], tapes.get(v, 0)) for v in shown if v in by_version],
        instances=[
            cluster.InstanceRoute(instance_id=row.instance_id, version_id=v, node_id=row.node_id)
            for v in messages
            for row in by_version.get(v, [])
            if row.state == "READY" and row.node_id in ready_nodes
        ],
    )


def _state(instances: Iterable[Instance], tapes: int) -> tuple[functions.FunctionState, str]:
    return function_state(False, [rows.instance_view(row) for row in instances], tapes)


def _version_state(version_id: str, instances: Iterable[Instance], tapes: int) -> cluster.VersionState:
    state, reason = _state(instances, tapes)
    return cluster.VersionState(version_id=version_id, state=state, reason=reason)


def _observe(found: list[Function], instances: list[Instance], nodes: list[Node]) -> None:
    metrics.MODELS_MANAGED.set(sum(function.state == "ACTIVE" for function in found))
    metrics.DELETIONS.set(sum(function.state == "DELETING" for function in found))
    for state in ("PENDING", "STARTING", "READY", "STOPPING"):
        metrics.INSTANCES.labels(state).set(sum(row.state == state for row in instances))
    for state in ("READY", "LOST"):
        metrics.NODES.labels(state).set(sum(node.state == state for node in nodes))
