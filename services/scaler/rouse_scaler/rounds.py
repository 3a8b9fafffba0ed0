"""The periodic look at all functions: read, decide, act."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp

from rouse_cache import VERSION_MARK, Activity, Windows
from rouse_common.clock import Clock
from rouse_common.errors import RouseError
from rouse_contracts import cluster, functions
from rouse_policy import scaling
from rouse_scaler import metrics
from rouse_scaler.actions import Actions
from rouse_scaler.adapters.control import ControlPlane
from rouse_scaler.adapters.coordinators import Coordinators
from rouse_scaler.spread import Spread
from rouse_scaler.state import Entry, Registry
from rouse_scaler.view import Target, View, rate_of

LOG = logging.getLogger(__name__)

# Functions that are acted on at once.
MAX_ACTING = 32


class Rounds:
    """One `round` after the other, `period_s` apart. `looked` is set once the first one has succeeded."""

    def __init__(
        self, control: ControlPlane, coordinators: Coordinators, windows: Windows, actions: Actions,
        registry: Registry, spread: Spread, settings: scaling.Settings, window_s: int, clock: Clock,
        tasks: asyncio.TaskGroup,
    ) -> None:  # fmt: skip
        self._spread = spread
        self._control, self._coordinators, self._windows = control, coordinators, windows
        self._actions, self._registry, self._settings = actions, registry, settings
        self._window_s, self._clock, self._tasks = window_s, clock, tasks
        self._slots = asyncio.Semaphore(MAX_ACTING)
        self._acting: set[asyncio.Task[None]] = set()
        self._blind = False
        self._gone: frozenset[str] = frozenset()
        self.looked = asyncio.Event()

    async def round(self) -> None:
        """Looks at all functions once and begins what is decided. Raises RouseError without cluster-manager."""
        began = self._clock.monotonic()
        view = await self._look()
        now = self._clock.now()
        for target in view.targets:
            if target.function.state == functions.FUNCTION_STATE_DELETING:
                continue
            entry = self._registry.entry(target.function.name, target.key)
            # What changed after we began to look may be missing from what we saw.
            if entry.acting or entry.lock.locked() or entry.changed_at >= began:
                continue
            self._consider(entry, target, view, now)
        self._spread.look(view)
        names = {target.function.name for target in view.targets}
        self._registry.keep({(target.function.name, target.key) for target in view.targets})
        await self._coordinators.keep(view.coordinators.values())
        await self._forget(names, view)
        metrics.TICK.observe(self._clock.monotonic() - began)
        self.looked.set()

    async def settle(self, timeout_s: float) -> None:
        """Waits for what is being done, `timeout_s` seconds at most, and gives up the rest."""
        if self._acting:
            _, pending = await asyncio.wait(self._acting, timeout=timeout_s)
            for task in pending:
                task.cancel()

    async def _look(self) -> View:
        (summaries, beside), found, nodes = await asyncio.gather(
            self._control.functions(), self._control.instances(), self._control.nodes()
        )
        instances: dict[str, list[cluster.Instance]] = {}
        for instance in found:
            instances.setdefault(instance.function, []).append(instance)
        executing = {(device.executing, "") for node in nodes for device in node.report.devices}
        versions = {entry.version_id for node in nodes for entry in node.report.residency if entry.state == "EXECUTING"}
        executing |= {key for x in found if x.version_id in versions for key in ((x.function, ""), _key(x))}
        activity, last_arrivals = await self._read_activity()
        return View(
            targets=_targets(summaries, beside),
            instances=instances,
            coordinators={node.node_id: node.coordinator_address for node in nodes},
            nodes=nodes,
            executing=frozenset(executing),
            activity=activity,
            last_arrivals=last_arrivals,
        )

    async def _read_activity(self) -> tuple[Mapping[str, Activity] | None, Mapping[str, float]]:
        """None where Redis is away: then nothing is stopped, and the least numbers are still kept."""
        try:
            read = await self._windows.activity(self._window_s), await self._windows.last_arrivals()
        except RouseError as error:
            if not self._blind:
                LOG.warning("arrivals are not known, nothing is scaled in until they are: %s", error)
            self._blind = True
            return None, {}
        if self._blind:
            LOG.info("arrivals are known again")
        self._blind = False
        return read

    def _consider(self, entry: Entry, target: Target, view: View, now: float) -> None:
        instances = [x for x in view.instances.get(target.function.name, ()) if target.owns(x)]
        snapshot = _snapshot(entry, target, instances, view)
        decision, entry.state = scaling.decide(snapshot, entry.state, self._settings, now)
        if entry.decision is not None and decision.desired != entry.decision.desired:
            LOG.info(
                "desired instances change function=%s from=%d to=%d reason=%s",
                entry.function, entry.decision.desired, decision.desired, decision.reason,
            )  # fmt: skip
        entry.seen, entry.decision, entry.number = snapshot, decision, target.version.version
        if decision.start or decision.stop or decision.resume or decision.finish:
            entry.acting = True
            plan = _Plan(now, decision, {x.instance_id: x for x in instances}, view.coordinators, target.version)
            task = self._tasks.create_task(self._act(entry, plan))
            self._acting.add(task)
            task.add_done_callback(self._acting.discard)

    async def _act(self, entry: Entry, plan: _Plan) -> None:
        try:
            async with self._slots, entry.lock:
                if max(entry.woken_at or 0.0, entry.slept_at or 0.0) >= plan.decided_at:
                    # Somebody wants it after all, or not any more; the next round sees what that changed.
                    return
                await self._carry_out(entry, plan)
            entry.trouble = ""
        except RouseError as error:
            if entry.trouble != error.reason:
                LOG.warning("scaling failed function=%s reason=%s error=%s", entry.function, error.reason, error)
            entry.trouble = error.reason
        finally:
            entry.acting = False
            entry.changed_at = self._clock.monotonic()

    async def _carry_out(self, entry: Entry, plan: _Plan) -> None:
        decision, reason = plan.decision, plan.decision.reason
        for instance_id in decision.resume:
            instance = plan.instances[instance_id]
            if instance.version_id == plan.version.version_id:
                await self._actions.resume(instance, plan.address(instance), plan.version)
            else:
                # Nobody waits for a new instance of a version that is not active any more.
                await self._actions.stop(instance, plan.address(instance), "its version was replaced before it started")
        for instance_id in decision.finish:
            instance = plan.instances[instance_id]
            self._actions.finish(instance, plan.address(instance), instance.reason or reason)
        for instance_id in decision.stop:
            instance = plan.instances[instance_id]
            await self._actions.stop(instance, plan.address(instance), reason)
        for _ in range(decision.start):
            instance_id = await self._actions.start(entry.function, plan.version.version_id, reason, "scaling")
            entry.started(instance_id, self._clock.monotonic())

    async def _forget(self, names: set[str], view: View) -> None:
        """Deletes what is kept of functions that are no more, once two rounds in a row have not seen them."""
        if view.activity is None:
            return
        gone = frozenset(key for key in view.last_arrivals if key.partition(VERSION_MARK)[0] not in names)
        for function in gone & self._gone:
            await self._windows.forget(function)
        self._gone = gone


@dataclass(frozen=True)
class _Plan:
    """A decision with what it takes to carry it out."""

    decided_at: float
    decision: scaling.Decision
    instances: Mapping[str, cluster.Instance]
    coordinators: Mapping[str, str]
    version: functions.FunctionVersion

    def address(self, instance: cluster.Instance) -> str:
        return self.coordinators.get(instance.node_id, "")


def _key(instance: cluster.Instance) -> tuple[str, str]:
    return instance.function, instance.version_id


def _targets(
    summaries: Sequence[functions.FunctionSummary], beside: Sequence[functions.FunctionVersion]
) -> list[Target]:
    others: dict[str, list[functions.FunctionVersion]] = {}
    for version in beside:
        others.setdefault(version.spec.name, []).append(version)
    targets = []
    for summary in summaries:
        own = others.get(summary.name, [])
        targets.append(Target(summary, summary.active_version, others=frozenset(version.version_id for version in own)))
        targets += [Target(summary, version, version.version_id) for version in own]
    return targets


def _snapshot(entry: Entry, target: Target, instances: Sequence[cluster.Instance], view: View) -> scaling.Snapshot:
    name, limits = target.function.name, target.version.spec.scaling
    prefix = name + VERSION_MARK
    named = {key.removeprefix(prefix): at for key, at in view.last_arrivals.items() if key.startswith(prefix)}
    activity = None if view.activity is None else view.activity.get(name)
    last = named.get(target.key) if target.key else view.last_arrivals.get(name)
    signs = [sign for sign in (last, entry.woken_at) if sign is not None]
    return scaling.Snapshot(
        function=name,
        version_id=target.version.version_id,
        # Of other versions a failed start is noticed by the instance that is gone.
        failed=not target.key and target.function.state == functions.FUNCTION_STATE_FAILED,
        min_instances=limits.min_instances,
        max_instances=max(1, limits.max_instances),
        idle_timeout_s=limits.idle_timeout.ToNanoseconds() / 1e9,
        arrival_rate=rate_of(target, view.activity),
        instance_rate=0.0 if activity is None else activity.instance_rate,
        last_arrival=max(signs, default=None),
        busy=(name, target.key) in view.executing,
        instances=tuple(
            scaling.InstanceView(
                x.instance_id,
                x.version_id,
                cluster.InstanceState.Name(x.state).removeprefix("INSTANCE_STATE_"),
                _seconds(x.since),
            )
            for x in instances
        ),
        named=named,
        slept_at=entry.slept_at,
        tapes=view.tapes.get(target.version.version_id, 0),
    )


def _seconds(stamp: Timestamp) -> float:
    return stamp.ToNanoseconds() / 1e9
