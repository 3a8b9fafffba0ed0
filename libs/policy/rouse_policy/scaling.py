"""How many instances a function needs, and which ones are stopped: model-level scaling.

The rule is AsyFunc's (sections 4.1 and 4.2): with R arrivals a second and R_max what the instances serve,
scale out when R > alpha * R_max, scale in when R < beta * R_max. Two things are added. Applied to R_max as
it is, scaling in flaps with few instances: two are started for R just above 0.8 r, and beta * 2r = 1.2 r is
above that. So beta is applied to what is left after scaling in. And scaling in waits until it was called
for without a break, as a window of seconds is noisy. Batches are not formed in this form, so what one
instance serves is the inverse of the time that a device works for a request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

COUNTED = ("PENDING", "STARTING", "READY")


@dataclass(frozen=True)
class InstanceView:
    """An instance that has not ended: its state's name, and since when, seconds since 1970."""

    instance_id: str
    version_id: str
    state: str
    since: float


@dataclass(frozen=True)
class Snapshot:
    """What is known of one function.

    Args:
        function: its name.
        version_id: its active version.
        failed: whether its last start failed.
        min_instances, max_instances, idle_timeout_s: its own limits.
        arrival_rate: arrivals a second over the window; None where they are not known.
        instance_rate: requests a second that one instance serves; 0 where none was measured in the window.
        last_arrival: latest arrival or wake-up, seconds since 1970; None where none is known.
        busy: whether a node executes it now.
        instances: those that have not ended, of this version and of versions without traffic.
        named: when requests that named one of those versions last came, by version, seconds since 1970.
        slept_at: when somebody last put it to sleep, seconds since 1970; None where nobody did.
        tapes: that a node has of it, which answer requests without an instance.
    """

    function: str
    version_id: str
    failed: bool
    min_instances: int
    max_instances: int
    idle_timeout_s: float
    arrival_rate: float | None
    instance_rate: float
    last_arrival: float | None
    busy: bool = False
    instances: tuple[InstanceView, ...] = ()
    named: Mapping[str, float] = field(default_factory=dict)
    slept_at: float | None = None
    tapes: int = 0


@dataclass(frozen=True)
class Settings:
    """Args:
    alpha, beta: shares of what the instances serve above which to scale out, below which to scale in.
    settle_s: how long scaling in must be called for.
    first_backoff_s, max_backoff_s: pause before a restart after the first failure, doubled up to the longest.
    stable_s: an instance that has served for so long makes earlier failures forgotten.
    resume_s: an instance that is PENDING for so long was never handed to its node.
    finish_s: an instance that is STOPPING for so long was never told to.
    retire_s: how long an instance of an older version is kept beside a ready one of the active version.
    """

    alpha: float = 0.8
    beta: float = 0.6
    settle_s: float = 10.0
    first_backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    stable_s: float = 60.0
    resume_s: float = 3.0
    finish_s: float = 30.0
    retire_s: float = 30.0


@dataclass(frozen=True)
class State:
    """Args:
    last_active: latest sign that the function is wanted, seconds since 1970.
    instance_rate: as last measured.
    low_since: since when fewer instances would do; None where they would not.
    failures: starts that failed, or instances that died, one after the other.
    retry_at: no instance is started before this time.
    failed: whether the last snapshot said so.
    seen: instances of the last snapshot that were not being stopped.
    """

    last_active: float | None = None
    instance_rate: float = 0.0
    low_since: float | None = None
    failures: int = 0
    retry_at: float = 0.0
    failed: bool = False
    seen: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Decision:
    """What to do now, and why.

    Args:
        desired: instances of the active version that there should be.
        start: how many to start now.
        stop: instances to stop.
        resume: PENDING instances to hand to their node once more.
        finish: STOPPING instances to tell once more.
        reason: words with the numbers.
    """

    desired: int
    start: int = 0
    stop: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    finish: tuple[str, ...] = ()
    reason: str = ""


def needed(rate: float, instance_rate: float, current: int, settings: Settings) -> int:
    """Instances for `rate` arrivals a second where each serves `instance_rate`, from `current` ones.

    Between the two thresholds the number stays. It never falls when the rate rises.
    """
    if rate > settings.alpha * current * instance_rate:
        return max(current, _ceil(rate / (settings.alpha * instance_rate)))
    if current > 1 and rate < settings.beta * (current - 1) * instance_rate:
        return max(1, min(current - 1, _ceil(rate / (settings.beta * instance_rate))))
    return current


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Decides for one function; the returned state belongs to its next decision."""
    state = _noticed(snapshot, state, settings, now)
    counted = [x for x in snapshot.instances if x.version_id == snapshot.version_id and x.state in COUNTED]
    current = len(counted)
    desired, reason, at_once = _desired(snapshot, state, settings, current, now)
    low_since: float | None = None
    if desired < current and not at_once:
        low_since = now if state.low_since is None else state.low_since
        if now - low_since < settings.settle_s:
            reason += f"; {desired} would do, for {now - low_since:.3g} of {settings.settle_s:g} s"
            desired = current
    start = max(0, desired - current)
    if start and now < state.retry_at:
        reason += f"; {state.failures} failures in a row, next start in {state.retry_at - now:.3g} s"
        start = 0
    stop = _surplus(counted, current - desired)
    stop += _retired(snapshot, state, settings, counted, now)
    resume = tuple(
        x.instance_id
        for x in snapshot.instances
        if x.state == "PENDING" and now - x.since >= settings.resume_s and x.instance_id not in stop
    )
    finish = tuple(
        x.instance_id for x in snapshot.instances if x.state == "STOPPING" and now - x.since >= settings.finish_s
    )
    following = replace(state, low_since=low_since, seen=state.seen - frozenset(stop))
    return Decision(desired, start, stop, resume, finish, reason), following


def _noticed(snapshot: Snapshot, state: State, settings: Settings, now: float) -> State:
    """The state with what this snapshot tells of failures, activity and speed."""
    present = {x.instance_id: x for x in snapshot.instances}
    lost = [instance_id for instance_id in state.seen if instance_id not in present]
    signs = [sign for sign in (state.last_active, snapshot.last_arrival) if sign is not None]
    signs += [x.since for x in snapshot.instances if x.state in COUNTED]
    if snapshot.busy or (snapshot.arrival_rate and snapshot.last_arrival is None):
        signs.append(now)
    failures, retry_at = state.failures, state.retry_at
    if lost or (snapshot.failed and not state.failed):
        failures += 1
        # Beyond 2**30 the longest pause is reached whatever the settings.
        pause = settings.first_backoff_s * 2.0 ** min(failures - 1, 30)
        retry_at = now + min(pause, settings.max_backoff_s)
    elif any(x.state == "READY" and now - x.since >= settings.stable_s for x in snapshot.instances):
        failures = 0
    return replace(
        state,
        last_active=max(signs, default=None),
        instance_rate=snapshot.instance_rate or state.instance_rate,
        failures=failures,
        retry_at=retry_at,
        failed=snapshot.failed,
        seen=frozenset(x.instance_id for x in snapshot.instances if x.state in COUNTED),
    )


def _desired(snapshot: Snapshot, state: State, settings: Settings, current: int, now: float) -> tuple[int, str, bool]:
    """How many instances there should be, within the function's limits; why; and whether fewer are stopped
    at once. An idle function has waited for its own timeout already."""
    low, high = snapshot.min_instances, max(snapshot.min_instances, snapshot.max_instances)
    rate, served, limits = snapshot.arrival_rate, state.instance_rate, f"limits {low} to {high}"
    if snapshot.slept_at is not None and (snapshot.last_arrival or 0.0) <= snapshot.slept_at:
        return low, f"put to sleep {now - snapshot.slept_at:.3g} s ago, not called since; {limits}", True
    if rate is None:
        return max(low, min(current, high)), f"arrivals are not known, {current} instances stay", False
    if snapshot.tapes and not current:
        # What they do not answer wakes it.
        return low, f"asleep: {snapshot.tapes} tapes answer without a process; {limits}", True
    if state.last_active is None:
        return low, f"never called; {limits}", True
    idle_s = now - state.last_active
    if idle_s >= snapshot.idle_timeout_s:
        return low, f"idle for {idle_s:.3g} s, timeout {snapshot.idle_timeout_s:g} s; {limits}", True
    if rate == 0 and not current:
        return low, f"no arrivals; {limits}", False
    base = max(current, 1)
    if served <= 0:
        count, why = base, f"{rate:.3g} arrivals/s, no service rate measured yet"
    else:
        count = needed(rate, served, base, settings)
        share = rate / (base * served)
        why = f"{rate:.3g} arrivals/s are {share:.0%} of what {base} x {served:.3g}/s serve"
        why += f", bounds {settings.beta:.0%} and {settings.alpha:.0%}"
    return min(max(count, low), high), f"{why}; {limits}", False


def _surplus(counted: list[InstanceView], count: int) -> tuple[str, ...]:
    """The `count` instances that are missed least: those not ready yet, then the newest."""
    order = sorted(counted, key=lambda x: (x.state == "READY", -x.since, x.instance_id))
    return tuple(x.instance_id for x in order[: max(0, count)])


def _retired(
    snapshot: Snapshot, state: State, settings: Settings, counted: list[InstanceView], now: float
) -> tuple[str, ...]:
    """Instances of versions without traffic that nothing needs any more.

    They serve until the active version does, and a while longer; those that requests name, until these have
    not come for as long as the function may be idle.
    """
    replaced = any(x.state == "READY" for x in counted)
    idle = state.last_active is not None and now - state.last_active >= snapshot.idle_timeout_s
    idle = idle and snapshot.arrival_rate is not None

    def unwanted(x: InstanceView) -> bool:
        named = snapshot.named.get(x.version_id)
        in_use = named is not None and now - named < snapshot.idle_timeout_s
        return idle or (replaced and not in_use and now - x.since >= settings.retire_s)

    return tuple(
        x.instance_id
        for x in snapshot.instances
        if x.version_id != snapshot.version_id and x.state in COUNTED and unwanted(x)
    )


def _ceil(value: float) -> int:
    return math.ceil(min(value, 1e6))
