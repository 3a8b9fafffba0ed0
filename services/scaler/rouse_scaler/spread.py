"""Weights on further nodes ahead of bursts, as the policy `spreading` says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from rouse_common.clock import Clock
from rouse_common.errors import RouseError
from rouse_contracts import cluster
from rouse_policy import spreading
from rouse_scaler.adapters.coordinators import Coordinators
from rouse_scaler.view import View, rate_of

LOG = logging.getLogger(__name__)
# A node keeps what was staged for a while (gpu-server's `stage_hold_s`, 180 s); it is told again well before.
RENEW_S = 60.0
MAX_TELLING = 8
LIVE = (cluster.INSTANCE_STATE_PENDING, cluster.INSTANCE_STATE_STARTING, cluster.INSTANCE_STATE_READY)
HELD = ("HOST", "SWAPPING_IN", "DEVICE", "EXECUTING")


class Spread:
    """Decides once a round, and tells nodes in the background."""

    def __init__(
        self, coordinators: Coordinators, settings: spreading.Settings, clock: Clock, tasks: asyncio.TaskGroup
    ) -> None:
        self._coordinators, self._settings = coordinators, settings
        self._clock, self._tasks = clock, tasks
        self._state = spreading.State()
        # By version and node: when it was last told, monotonic seconds.
        self._told: dict[tuple[str, str], float] = {}
        self._telling: set[asyncio.Task[None]] = set()

    def look(self, view: View) -> None:
        """One decision over all versions with traffic."""
        now = self._clock.monotonic()
        decision, self._state = spreading.decide(_snapshot(view), self._state, self._settings, now)
        wanted = {(copy.version_id, copy.node_id): copy for copy in decision.copies}
        self._told = {key: at for key, at in self._told.items() if key in wanted}
        due = [copy for key, copy in wanted.items() if now - self._told.get(key, float("-inf")) >= RENEW_S]
        for copy in due[: MAX_TELLING - len(self._telling)]:
            self._told[copy.version_id, copy.node_id] = now
            task = self._tasks.create_task(self._tell(copy, view))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    def cancel(self) -> None:
        """Gives up what is under way."""
        for task in tuple(self._telling):
            task.cancel()

    async def _tell(self, copy: spreading.Copy, view: View) -> None:
        version = next(t.version for t in view.targets if t.version.version_id == copy.version_id)
        try:
            await self._coordinators.stage(view.coordinators.get(copy.node_id, ""), version)
        except RouseError as error:
            LOG.warning("not staged ahead version=%s node=%s error=%s", copy.version_id, copy.node_id, error)
            return
        LOG.info("staged ahead version=%s node=%s reason=%s", copy.version_id, copy.node_id, copy.reason)


def _snapshot(view: View) -> spreading.Snapshot:
    holding: dict[str, list[str]] = {}
    for node in view.nodes:
        for entry in node.report.residency:
            if entry.state in HELD:
                holding.setdefault(entry.version_id, []).append(node.node_id)
    demands = []
    for target in view.targets:
        name, version = target.function.name, target.version
        activity = None if view.activity is None else view.activity.get(name)
        demands.append(
            spreading.Demand(
                version_id=version.version_id,
                function=name,
                size_bytes=version.weights_bytes,
                rate=rate_of(target, view.activity),
                instance_rate=0.0 if activity is None else activity.instance_rate,
                serving=_serving(view.instances, name, version.version_id),
                holding=tuple(sorted(set(holding.get(version.version_id, ())))),
            )
        )
    return spreading.Snapshot(tuple(_node(node) for node in view.nodes if _takes_requests(node)), tuple(demands))


def _takes_requests(node: cluster.Node) -> bool:
    return bool(node.state == cluster.NODE_STATE_READY)


def _node(node: cluster.Node) -> spreading.Node:
    free = node.report.host_capacity_bytes - node.report.host_used_bytes
    return spreading.Node(node.node_id, max(1, len(node.report.devices)), max(0, free))


def _serving(instances: Mapping[str, Sequence[cluster.Instance]], function: str, version_id: str) -> tuple[str, ...]:
    nodes = {x.node_id for x in instances.get(function, ()) if x.version_id == version_id and x.state in LIVE}
    return tuple(sorted(nodes))
