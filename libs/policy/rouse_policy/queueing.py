"""Which version asks for a device next, and which arriving request is refused: the order of a node's queues.

Between versions the one goes first whose next request's tenant has had least of the node for its weight (see
`fairness`), and among those of one tenant the order that is set: the earliest deadline, the earliest arrival, or by
required request count (see `rrc`); the one that came earlier among equals. How many may ask for a device at once is
limited in all and for each version, so that the others stay where they can expire and be cancelled cheaply. Who of a
version goes is decided when the device is there (see `batching`).

**Starvation.** By required request count, who is far from its objective waits for as long as others come. So of
`fair_every` decisions one goes to the request that came first of all, once it has waited `patience_s`: with k requests
before it, it goes at the latest `fair_every` * (k + 1) decisions after its patience is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from rouse_policy import rrc

# A pause between two executions counts as so many of the usual ones at most; shorter than this none is too long.
LONGEST = 4.0
SHORTEST_S = 0.001


class Order(Enum):
    """How the versions of one tenant are ordered."""

    DEADLINE = "DEADLINE"
    FIFO = "FIFO"
    RRC = "RRC"


@dataclass(frozen=True, slots=True)
class Head:
    """The next request of a version that may ask for a device.

    Args:
        version_id: the version.
        deadline: when the request must be answered, seconds on the snapshot's clock.
        arrived: when it came, seconds on the same clock.
        tag: what its tenant has had of the node for its weight.
        required: the version's required request count.
        execution_s: what its execution takes at least, seconds; 0 where that is not known.
    """

    version_id: str
    deadline: float
    arrived: float
    tag: float = 0.0
    required: float = 0.0
    execution_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Args:
    heads: the versions that have a request queued and room for it to go on.
    acquiring: calls of all versions that ask for a device.
    behind: (required request count, version) of all versions whose count is positive, ascending, whether or not they
        have requests; ordering by it needs them.
    versions: how many versions have had requests, for the same.
    """

    heads: Sequence[Head]
    acquiring: int
    behind: Sequence[tuple[float, str]] = ()
    versions: int = 0


@dataclass(frozen=True)
class Settings:
    """Args:
    max_acquiring: calls of all versions that ask for a device at once.
    max_acquiring_per_version: calls of one version that do so.
    smoothing: weight of the newest interval between two finished executions, 0 to 1.
    min_retry_s, max_retry_s: bounds of what a refused client is told to wait.
    unknown_retry_s: what it is told where nothing was measured yet.
    order: how the versions of one tenant are ordered.
    objective: by what required request counts are computed, and alpha is moved.
    patience_s, fair_every: by required request count, one of so many decisions goes to who came first, once it has
        waited so long.
    late_last: by required request count, requests that can keep their deadline no more go after those that can. Not in
        the paper, whose order spends a device on them while others become late.
    """

    max_acquiring: int = 64
    max_acquiring_per_version: int = 2
    smoothing: float = 0.2
    min_retry_s: float = 0.05
    max_retry_s: float = 30.0
    unknown_retry_s: float = 1.0
    order: Order = Order.DEADLINE
    objective: rrc.Settings = field(default_factory=rrc.Settings)
    patience_s: float = 5.0
    fair_every: int = 16
    late_last: bool = False


@dataclass(frozen=True)
class State:
    """Args:
    alpha: of the order by required request count; None before its first decision.
    since_fair: decisions since the last that went to who came first.
    """

    alpha: rrc.Alpha | None = None
    since_fair: int = 0


class Action(Enum):
    """What becomes of a head."""

    START = "START"
    WAIT = "WAIT"


@dataclass(frozen=True, slots=True)
class Decision:
    """Which version asks for a device, and why; with WAIT none is named."""

    action: Action
    version_id: str
    reason: str


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Names the version that asks next."""
    if not snapshot.heads:
        return Decision(Action.WAIT, "", "nothing is queued that may go on"), state
    if snapshot.acquiring >= settings.max_acquiring:
        reason = f"{snapshot.acquiring} calls wait for a device, {settings.max_acquiring} is the limit"
        return Decision(Action.WAIT, "", reason), state
    if settings.order is Order.RRC:
        return _by_required_count(snapshot, state, settings, now)
    if settings.order is Order.FIFO:
        first = min(snapshot.heads, key=lambda head: (head.tag, head.arrived, head.version_id))
        reason = f"least served tenant, then first come, of {len(snapshot.heads)} versions"
    else:
        first = min(snapshot.heads, key=lambda head: (head.tag, head.deadline, head.arrived, head.version_id))
        reason = f"least served tenant, then earliest deadline, of {len(snapshot.heads)} versions"
    return Decision(Action.START, first.version_id, reason), state


def _by_required_count(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    objective = settings.objective
    alpha = state.alpha or rrc.Alpha(objective.first_alpha)
    ratio = 1 - len(snapshot.behind) / snapshot.versions if snapshot.versions else 1.0
    alpha = rrc.configure(alpha, ratio, objective, now)
    if len(snapshot.heads) == 1:
        only = snapshot.heads[0]
        reason = f"required count {only.required:.4g}, the only version that waits"
        return Decision(Action.START, only.version_id, reason), State(alpha, state.since_fair + 1)
    if state.since_fair + 1 >= settings.fair_every:
        oldest = min(snapshot.heads, key=lambda head: (head.arrived, head.version_id))
        waited = now - oldest.arrived
        if waited >= settings.patience_s:
            reason = f"came first and has waited {waited:.3g} s; one in {settings.fair_every} decisions is for such"
            return Decision(Action.START, oldest.version_id, reason), State(alpha, 0)
    last = rrc.boundary(snapshot.behind, alpha.value)

    def key(head: Head) -> tuple[float, bool, bool, float, float, str]:
        late = settings.late_last and now + head.execution_s > head.deadline
        return (head.tag, late, *rrc.rank(head.required, head.version_id, last), head.arrived, head.version_id)

    first = min(snapshot.heads, key=key)
    group = "low" if rrc.rank(first.required, first.version_id, last)[0] else "high"
    reason = (
        f"required count {first.required:.4g}, {group} group (up to {last[0]:.4g}, alpha {alpha.value:.3g}), "
        f"of {len(snapshot.heads)} versions"
    )
    return Decision(Action.START, first.version_id, reason), State(alpha, state.since_fair + 1)


class Load(NamedTuple):
    """A version's queue as an arriving request finds it.

    Args:
        waiting: requests that wait.
        executing: requests that hold a device.
        capacity: requests that may wait.
        ahead: those of the waiting ones that go before it.
        remaining_s: seconds until its deadline.
        execution_s: what its own execution typically takes; None where that is not known.
    """

    waiting: int
    executing: int
    capacity: int
    ahead: float
    remaining_s: float
    execution_s: float | None = None


class Throughput(NamedTuple):
    """How fast a version's requests are served while others wait behind them.

    Args:
        finished_at: when the latest one finished, None where none waited since.
        interval_s: typical time between two of them, None before the first measurement.
    """

    finished_at: float | None = None
    interval_s: float | None = None


class Verdict(Enum):
    """What becomes of an arriving request."""

    ADMIT = "ADMIT"
    FULL = "FULL"
    TOO_LATE = "TOO_LATE"


class Admission(NamedTuple):
    """Whether a request may wait, why, and else the seconds after which it would be let in."""

    verdict: Verdict
    reason: str
    retry_after_s: float | None = None

    @property
    def admitted(self) -> bool:
        return self.verdict is Verdict.ADMIT


def admit(load: Load, throughput: Throughput, settings: Settings) -> Admission:
    """Decides on an arriving request.

    A request that nothing stands before is about to run: it takes no place in the queue, and is never refused
    for its deadline, so that what was measured can always be measured again. Others are refused where those
    before it, at the measured rate (which includes batching), and its own execution take longer than it has:
    a lower estimate, and none before there are measurements. A refused client is told when to come back.
    """
    about_to_run = 1 if load.waiting and not load.executing else 0
    waiting = load.waiting - about_to_run
    interval = throughput.interval_s
    if waiting >= load.capacity:
        if interval is None:
            retry, measured = settings.unknown_retry_s, "no service rate is known yet"
        else:
            retry, measured = _bounded(waiting * interval, settings), f"one is served every {interval * 1000:.3g} ms"
        return Admission(Verdict.FULL, f"{waiting} requests wait, {load.capacity} is the limit; {measured}", retry)
    ahead = max(0.0, load.ahead - about_to_run)
    if interval is None or ahead < 1:
        return Admission(Verdict.ADMIT, "there is room")
    needed = ahead * interval + (load.execution_s or 0.0)
    if needed <= load.remaining_s:
        return Admission(Verdict.ADMIT, f"there is room; {needed:.3g} s expected")
    reason = (
        f"{ahead:.3g} requests go before it, one is served every {interval * 1000:.3g} ms"
        + (f", and it takes {load.execution_s * 1000:.3g} ms itself" if load.execution_s else "")
        + f": {needed:.3g} s, {load.remaining_s:.3g} s are left"
    )
    return Admission(Verdict.TOO_LATE, reason, _bounded(needed - load.remaining_s, settings))


def learn(throughput: Throughput, served: int, others: bool, settings: Settings, now: float) -> Throughput:
    """The throughput after `served` requests were served together at `now`; `others`: whether more of their
    version are here. One long pause, as for a swap, does not make a rate: an interval counts as four of the
    known ones at most."""
    interval = throughput.interval_s
    if throughput.finished_at is not None:
        latest = (now - throughput.finished_at) / max(served, 1)
        if interval is None:
            interval = latest
        else:
            interval += settings.smoothing * (min(latest, max(LONGEST * interval, SHORTEST_S)) - interval)
    return Throughput(now if others else None, interval)


def _bounded(seconds: float, settings: Settings) -> float:
    return min(max(seconds, settings.min_retry_s), settings.max_retry_s)
