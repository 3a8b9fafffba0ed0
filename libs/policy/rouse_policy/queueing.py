"""Which waiting request goes on, and which is refused: the order of a node's queues.

First form: within a version first come, first served; between versions the head with the earliest deadline
goes first, the one that came earlier among equals. How many requests may wait for a device at once is
limited in all and for each version, so that the others stay where they can expire and be cancelled cheaply.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Head:
    """The oldest queued request of a version that may have another one wait for a device.

    Args:
        version_id: the version.
        deadline: when the request must be answered, seconds on the snapshot's clock.
        arrived: when it came, seconds on the same clock.
    """

    version_id: str
    deadline: float
    arrived: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Args:
    heads: the versions that have a request queued and room for it to go on.
    acquiring: requests of all versions that wait for a device.
    """

    heads: tuple[Head, ...]
    acquiring: int


@dataclass(frozen=True)
class Settings:
    """Args:
    max_acquiring: requests of all versions that wait for a device at once.
    max_acquiring_per_version: requests of one version that do so.
    smoothing: weight of the newest interval between two finished requests, 0 to 1.
    min_retry_s, max_retry_s: bounds of what a refused client is told to wait.
    unknown_retry_s: what it is told where nothing was measured yet.
    """

    max_acquiring: int = 64
    max_acquiring_per_version: int = 2
    smoothing: float = 0.2
    min_retry_s: float = 0.05
    max_retry_s: float = 30.0
    unknown_retry_s: float = 1.0


@dataclass(frozen=True)
class State:
    """Nothing to remember between two decisions in this form."""


class Action(Enum):
    """What becomes of a head."""

    START = "START"
    EXPIRE = "EXPIRE"
    WAIT = "WAIT"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with the head of which version, and why; with WAIT no version is named."""

    action: Action
    version_id: str
    reason: str


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Names the head that goes on next, or one whose deadline has passed."""
    if not snapshot.heads:
        return Decision(Action.WAIT, "", "nothing is queued that may go on"), state
    first = min(snapshot.heads, key=lambda head: (head.deadline, head.arrived, head.version_id))
    if first.deadline <= now:
        return Decision(Action.EXPIRE, first.version_id, f"its deadline passed {now - first.deadline:.3f} s ago"), state
    if snapshot.acquiring >= settings.max_acquiring:
        reason = f"{snapshot.acquiring} requests wait for a device, {settings.max_acquiring} is the limit"
        return Decision(Action.WAIT, "", reason), state
    return Decision(Action.START, first.version_id, f"earliest deadline of {len(snapshot.heads)} versions"), state


@dataclass(frozen=True, slots=True)
class Load:
    """A version's queue as an arriving request finds it.

    Args:
        queued: requests that have not asked for a device yet.
        acquiring: requests that wait for a device.
        executing: requests that hold one.
        capacity: requests that may wait.
    """

    queued: int
    acquiring: int
    executing: int
    capacity: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """How fast a version's requests are served while others wait behind them.

    Args:
        finished_at: when the latest one finished, None where none waited since.
        interval_s: typical time between two of them, None before the first measurement.
    """

    finished_at: float | None = None
    interval_s: float | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a request may wait, why, and else the seconds after which places will be free."""

    admitted: bool
    reason: str
    retry_after_s: float | None = None


def admit(load: Load, throughput: Throughput, settings: Settings) -> Admission:
    """Decides on an arriving request.

    A request that nothing stands before is about to run and takes no place in the queue. A refused client
    is told how long the queue takes to be served.
    """
    waiting = load.queued + load.acquiring - (1 if load.acquiring and not load.executing else 0)
    if waiting < load.capacity:
        return Admission(True, "there is room")
    if throughput.interval_s is None:
        retry, measured = settings.unknown_retry_s, "no service rate is known yet"
    else:
        retry = min(max(waiting * throughput.interval_s, settings.min_retry_s), settings.max_retry_s)
        measured = f"one is served every {throughput.interval_s * 1000:.3g} ms"
    return Admission(False, f"{waiting} requests wait, {load.capacity} is the limit; {measured}", retry)


def learn(throughput: Throughput, others: bool, settings: Settings, now: float) -> Throughput:
    """The throughput after a request was served at `now`; `others`: whether more of its version are here."""
    interval = throughput.interval_s
    if throughput.finished_at is not None:
        latest = now - throughput.finished_at
        interval = latest if interval is None else interval + settings.smoothing * (latest - interval)
    return Throughput(now if others else None, interval)
