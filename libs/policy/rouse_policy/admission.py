"""Whether a request is let in: at once, held until its function is awake, or refused.

A request is refused where its deadline leaves no time to do anything, and where as many requests are held
as the gateway may hold. Requests for functions that are ready are never refused here: their queues are on
the nodes, and bounded there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """What becomes of a request."""

    ADMIT = "ADMIT"
    HOLD = "HOLD"
    TOO_LATE = "TOO_LATE"
    HOLD_FULL = "HOLD_FULL"


class Snapshot(NamedTuple):
    """Args:
    remaining_s: seconds until the request's deadline.
    ready: whether a node has a READY instance for it.
    held: requests that are held now.
    """

    remaining_s: float
    ready: bool
    held: int


@dataclass(frozen=True)
class Settings:
    """Args:
    max_held: requests that may be held at once.
    min_remaining_s: with less time than this nothing can be answered any more.
    smoothing: weight of the newest wake-up in the typical one, 0 to 1.
    min_retry_s, max_retry_s: bounds of what a refused client is told to wait.
    """

    max_held: int
    min_remaining_s: float = 0.001
    smoothing: float = 0.3
    min_retry_s: float = 0.1
    max_retry_s: float = 30.0


@dataclass(frozen=True)
class State:
    """How long a wake-up takes here, in seconds: a moving average, and a guess before the first one."""

    typical_wake_s: float = 1.0


class Decision(NamedTuple):
    """The verdict, why, and for HOLD_FULL the seconds after which places will be free again."""

    verdict: Verdict
    reason: str
    retry_after_s: float | None = None


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Decides on one request. `now` does not matter to it."""
    if snapshot.remaining_s < settings.min_remaining_s:
        reason = (
            f"{snapshot.remaining_s * 1000:.3g} ms are left until the deadline, "
            f"at least {settings.min_remaining_s * 1000:.3g} ms are needed"
        )
        return Decision(Verdict.TOO_LATE, reason), state
    if snapshot.ready:
        return Decision(Verdict.ADMIT, "an instance is ready"), state
    if snapshot.held >= settings.max_held:
        retry = min(max(state.typical_wake_s, settings.min_retry_s), settings.max_retry_s)
        reason = (
            f"{snapshot.held} requests are held for functions that wake, {settings.max_held} is the limit; "
            f"a wake-up takes {state.typical_wake_s:.2g} s"
        )
        return Decision(Verdict.HOLD_FULL, reason, retry), state
    return Decision(Verdict.HOLD, f"no instance is ready; {snapshot.held} of {settings.max_held} places taken"), state


def learn(state: State, wake_s: float, settings: Settings) -> State:
    """The state after a wake-up that took `wake_s` seconds."""
    return State(state.typical_wake_s + settings.smoothing * (wake_s - state.typical_wake_s))
