"""Nodes: who is there, since when nothing was heard of whom, and what each said last."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from rouse_cluster_manager import reports
from rouse_cluster_manager.adapters import rows
from rouse_cluster_manager.lives import advance
from rouse_cluster_manager.state import Report, at
from rouse_common.clock import Clock
from rouse_common.errors import NotFound
from rouse_contracts import cluster
from rouse_store import Database, Unit
from rouse_store.models import Device, Node

LOG = logging.getLogger(__name__)


@dataclass
class Beat:
    """The last sign of life of a node.

    Attributes:
        heard: monotonic seconds.
        wall: seconds since 1970.
        written: what of its residency is in the database, None where that is not known.
        missing: instances that its last heartbeats did not name, with the monotonic time of the first.
    """

    incarnation: str
    heard: float
    wall: float
    report: cluster.NodeReport | None = None
    written: frozenset[reports.WrittenKey] | None = None
    missing: dict[str, float] = field(default_factory=dict)


class Fleet:
    """Registration, heartbeats and loss of nodes.

    A node's report is kept in memory: it changes with every request. The database gets what outlives it:
    which node is there, and its residency when that changes.

    Args:
        lost_after_s: a node is LOST after so long without a heartbeat.
        forget_after_s: a node that is LOST for longer is forgotten.
        stop_limit_s: an instance that is STOPPING for longer is named in the answer to the heartbeat.
        on_report: called when a report changed what routing looks at.
        forget: called with addresses that are not in use any more.
    """

    def __init__(
        self, database: Database, clock: Clock, *, lost_after_s: float, forget_after_s: float, stop_limit_s: float,
        on_report: Callable[[], None], forget: Callable[[set[str]], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._database, self._clock = database, clock
        self._lost_after_s, self._forget_after_s, self._stop_limit_s = lost_after_s, forget_after_s, stop_limit_s
        self._on_report, self._forget = on_report, forget
        self._beats: dict[str, Beat] = {}
        self._checked = clock.monotonic()

    def reports(self) -> dict[str, cluster.NodeReport]:
        """What each node said last."""
        return {node_id: beat.report for node_id, beat in self._beats.items() if beat.report is not None}

    async def reload(self) -> None:
        """Begins with what the database knows: a node that was READY gets the full time to be heard of."""
        nodes = await self._database.run(lambda unit: unit.nodes.all())
        beats, now = {}, self._clock.monotonic()
        for node in nodes:
            if node.state == "READY":
                beat = self._beats.get(node.node_id)
                if beat is None or beat.incarnation != node.incarnation:
                    beat = Beat(node.incarnation, now, node.last_heartbeat.timestamp())
                beat.heard, beat.written = now, None
                beats[node.node_id] = beat
        self._beats, self._checked = beats, now

    async def register(self, message: cluster.Node) -> None:
        """A coordinator says that its node is there. Raises InvalidArgument BAD_NODE."""
        reports.check_node(message)
        now = self._clock.now()
        unused = await self._database.run(lambda unit: _register(unit, message, now))
        beat = self._beats.get(message.node_id)
        if beat is None or beat.incarnation != message.incarnation:
            self._beats[message.node_id] = Beat(message.incarnation, self._clock.monotonic(), now)
        else:
            beat.heard, beat.wall = self._clock.monotonic(), now
        if unused:
            await self._forget(unused)

    def hear(self, node_id: str, incarnation: str) -> None:
        """Notes a sign of life of a node that is known."""
        beat = self._beats.get(node_id)
        if beat is not None and beat.incarnation == incarnation:
            beat.heard, beat.wall = self._clock.monotonic(), self._clock.now()

    async def heartbeat(self, request: cluster.HeartbeatRequest) -> list[str]:
        """Takes a node's report; returns the instances that it has to stop.

        Raises NotFound NODE_NOT_REGISTERED, InvalidArgument BAD_REPORT.
        """
        reports.check_report(request)
        node_id, now = request.node_id, self._clock.now()
        beat = self._beats.get(node_id)
        if beat is None or beat.incarnation != request.incarnation:
            beat = Beat(request.incarnation, self._clock.monotonic(), now)
        for residency in request.report.residency:
            residency.node_id = node_id
        known = beat.written
        held = reports.residency_key(request.report)
        missing = dict(beat.missing)
        outcome = await self._database.run(
            lambda unit: _heartbeat(
                unit, request, now, write=known != held, stop_limit_s=self._stop_limit_s,
                gone={i for i, since in missing.items() if self._clock.monotonic() - since >= self._lost_after_s / 2},
            )
        )  # fmt: skip
        beat.written = held
        beat.missing = {i: missing.get(i, self._clock.monotonic()) for i in outcome.missing}
        previous, beat.report = beat.report, request.report
        current = self._beats.get(node_id)
        if current is None or current.incarnation == request.incarnation:
            self._beats[node_id] = beat
        if previous is None or reports.routing_view(previous) != reports.routing_view(request.report):
            self._on_report()
        return outcome.stop

    async def check_lost(self) -> None:
        """Marks as LOST the nodes that were not heard of for too long, with their instances."""
        now = self._clock.monotonic()
        if now - self._checked > self._lost_after_s / 2:
            # This process stood still: heartbeats that came meanwhile still wait to be read.
            for beat in self._beats.values():
                beat.heard = max(beat.heard, now - self._lost_after_s / 2)
        self._checked = now
        silent = {n: b for n, b in self._beats.items() if now - b.heard > self._lost_after_s}
        for node_id, beat in silent.items():
            wall, silent_s = beat.wall, now - beat.heard
            await self._database.run(partial(_lose, node_id, beat.incarnation, wall, silent_s, self._clock.now()))
            if self._beats.get(node_id) is beat and beat.wall == wall:
                del self._beats[node_id]

    async def forget_lost(self) -> None:
        """Forgets nodes that are LOST for so long that they will not come back, with what was theirs."""
        now = at(self._clock.now())

        def work(unit: Unit) -> set[str]:
            gone = unit.nodes.remove_lost(now - timedelta(seconds=self._forget_after_s))
            for node in gone:
                unit.record(now, "node.forgotten", node.node_id, f"it was LOST for over {self._forget_after_s:g} s")
            return {a for node in gone for a in (node.device_address, node.coordinator_address)}

        unused = await self._database.run(work)
        if unused:
            await self._forget(unused)

    async def list_nodes(self) -> list[cluster.Node]:
        """Every node, with its last report."""
        found = await self._database.run(lambda unit: unit.nodes.all())
        messages = []
        for row in found:
            message, beat = rows.node_message(row), self._beats.get(row.node_id)
            if beat is not None and beat.incarnation == row.incarnation:
                message.last_heartbeat.CopyFrom(rows.timestamp(at(beat.wall)))
                if beat.report is not None:
                    message.report.CopyFrom(beat.report)
            messages.append(message)
        return messages


def _register(unit: Unit, message: cluster.Node, time: float) -> set[str]:
    now, node_id = at(time), message.node_id
    addresses = (message.router_address, message.device_address, message.coordinator_address)
    node = unit.nodes.get(node_id, lock=True)
    is_new = node is None
    if node is None:
        node = Node(
            node_id=node_id, incarnation=message.incarnation, router_address=addresses[0],
            link_address=message.link_address, device_address=addresses[1], coordinator_address=addresses[2],
            state="READY", registered_at=now, last_heartbeat=now, since=now, devices=[],
        )  # fmt: skip
        unit.nodes.add(node)
    before = {node.router_address, node.device_address, node.coordinator_address}
    restarted, returned = node.incarnation != message.incarnation, node.state != "READY"
    if restarted:
        for row in unit.instances.of_node(node_id, lock=True):
            if row.node_incarnation != message.incarnation:
                advance(unit, row, Report.NODE_GONE, f"node {node_id} started anew", time)
    node.incarnation = message.incarnation
    node.router_address, node.device_address, node.coordinator_address = addresses
    node.link_address = message.link_address
    if is_new or restarted or returned:
        node.registered_at = node.since = now
        kind = "node.registered" if is_new or restarted else "node.returned"
        capacity = sum(device.capacity_bytes for device in message.devices) / (1 << 20)
        unit.record(now, kind, node_id, f"{len(message.devices)} devices with {capacity:.0f} MiB in all")
        LOG.info("%s node=%s incarnation=%s devices=%d", kind, node_id, message.incarnation, len(message.devices))
    node.state, node.last_heartbeat = "READY", now
    wanted = [(device.name, device.kind, device.capacity_bytes) for device in message.devices]
    if wanted != [(device.name, device.kind, device.capacity_bytes) for device in node.devices]:
        unit.nodes.set_devices(
            node,
            [
                Device(node_id=node_id, name=name, kind=kind, capacity_bytes=capacity, position=position)
                for position, (name, kind, capacity) in enumerate(wanted)
            ],
        )
    unit.routing_changed = True
    return before - set(addresses)


@dataclass(frozen=True)
class _Outcome:
    stop: list[str]
    missing: set[str]


def _heartbeat(
    unit: Unit, request: cluster.HeartbeatRequest, time: float, *, write: bool, stop_limit_s: float, gone: set[str]
) -> _Outcome:
    node_id, now = request.node_id, at(time)
    node = unit.nodes.get(node_id)
    if node is None or node.incarnation != request.incarnation:
        raise NotFound("NODE_NOT_REGISTERED", f"node {node_id} has to register (again)", node=node_id)
    returned = node.state != "READY"
    if returned or write:
        node = unit.nodes.get(node_id, lock=True)
        if node is None or node.incarnation != request.incarnation:
            raise NotFound("NODE_NOT_REGISTERED", f"node {node_id} has to register (again)", node=node_id)
        node.last_heartbeat = now
    if returned:
        node.state, node.since, unit.routing_changed = "READY", now, True
        unit.record(now, "node.returned", node_id, "its heartbeats come again")
        LOG.info("node.returned node=%s", node_id)
    held = set(request.instance_ids)
    named = {row.instance_id: row for row in unit.instances.named(held)}
    live = unit.instances.of_node(node_id)
    stop = [i for i in sorted(held) if i not in named or not _belongs(named[i].node_id, named[i].state, node_id)]
    stop += [r.instance_id for r in live if r.instance_id in held and _overdue(r.state, r.since, now, stop_limit_s)]
    absent = {row.instance_id for row in live if row.instance_id not in held and row.state != "PENDING"}
    for row in unit.instances.of_node(node_id, lock=True) if absent & gone else ():
        if row.instance_id in absent & gone:
            report = Report.GONE if row.state == "STOPPING" else Report.BROKE
            advance(unit, row, report, f"node {node_id} does not hold it any more", time)
    if write:
        reports.write_residency(unit, request, now)
    return _Outcome(stop, absent - gone)


def _belongs(instance_node: str, state: str, node_id: str) -> bool:
    return instance_node == node_id and state not in ("ENDED", "FAILED", "LOST")


def _overdue(state: str, since: datetime, now: datetime, limit_s: float) -> bool:
    return state == "STOPPING" and (now - since).total_seconds() > limit_s


def _lose(node_id: str, incarnation: str, heard: float, silent_s: float, time: float, unit: Unit) -> None:
    node = unit.nodes.get(node_id, lock=True)
    if node is None or node.incarnation != incarnation or node.state != "READY":
        return
    now = at(time)
    node.state, node.since, node.last_heartbeat, unit.routing_changed = "LOST", now, at(heard), True
    reason = f"node {node_id} sent no heartbeat for {silent_s:.1f} s"
    lost = unit.instances.of_node(node_id, lock=True)
    for row in lost:
        advance(unit, row, Report.NODE_GONE, reason, time)
    unit.record(now, "node.lost", node_id, f"{reason}; {len(lost)} instances are lost with it")
    LOG.warning("node.lost node=%s silent_s=%.1f instances=%d", node_id, silent_s, len(lost))
