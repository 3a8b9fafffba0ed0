"""When requests of a function leave for a device together, and which.

A batch leaves when a device could take it: whatever is queued and fits goes together, and nothing waits for
company. That is the only form of batching that costs a request nothing when it is alone. Where the function's
owner allows a delay, the batch asks for its device later, as long as nobody's time runs out: the deadline or
the objective of its members, less what the function's latency profile predicts for a batch of that size.

The profile is learnt from executions: by powers of two of the rows, a smoothed mean and a smoothed deviation of
the time. What it predicts is an upper estimate: mean and four deviations (as RFC 6298 takes for retransmissions),
and for sizes never seen what is known of the next smaller one, times the rows. Before anything is known nothing
waits, and no batch is made smaller.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

DEVIATIONS = 4.0


class Action(Enum):
    """Whether the batch goes on."""

    LEAVE = "LEAVE"
    WAIT = "WAIT"


class Cause(Enum):
    """What made a batch leave as it is."""

    # A device is free, or nothing is to be waited for.
    AT_ONCE = "AT_ONCE"
    # No further request fits.
    SIZE = "SIZE"
    # The oldest has waited for company as long as it may.
    DELAY = "DELAY"
    # Somebody's deadline or objective would pass.
    DEADLINE = "DEADLINE"
    # Nothing is there that could leave, or it still waits.
    NONE = "NONE"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued request.

    Args:
        rows: its part of a batch; at least 1.
        size_bytes: of its inputs.
        kind: only requests of one kind share a batch; None: it is executed alone.
        arrived, deadline: seconds on the clock of `now`.
    """

    rows: int
    size_bytes: int
    kind: Hashable
    arrived: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Args:
    waiting: a version's requests in the order in which they are to go; the first decides whose batch it is.
    granted: whether a device is there for them now.
    """

    waiting: Sequence[Waiting]
    granted: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """Args:
    max_rows: rows of a batch at most; 1: requests are executed one by one.
    max_delay_s: how long a request may wait for others.
    max_bytes: inputs of a batch at most, together.
    objective_s: the function's latency objective; 0: none.
    margin_s: kept back from every deadline.
    smoothing: weight of the newest execution in the profile, 0 to 1.
    """

    max_rows: int = 1
    max_delay_s: float = 0.0
    max_bytes: int = 64 << 20
    objective_s: float = 0.0
    margin_s: float = 0.002
    smoothing: float = 0.2


class Timing(NamedTuple):
    """How long executions of about so many rows take: smoothed rows, mean and deviation, in seconds."""

    rows: float
    mean_s: float
    deviation_s: float

    @property
    def bound_s(self) -> float:
        return self.mean_s + DEVIATIONS * self.deviation_s


@dataclass(frozen=True, slots=True)
class State:
    """The latency profile of a version, by the number of bits of the rows."""

    profile: Mapping[int, Timing] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Decision:
    """Args:
    action, cause: what is done, and what made it so.
    members: positions in the snapshot, in its order; those that would leave if the action is WAIT.
    rows: of the members.
    predicted_s: upper estimate of their execution; None before anything is known.
    wake_at: with WAIT: when to decide again if nobody comes.
    reason: in words, with the numbers.
    """

    action: Action
    cause: Cause
    members: tuple[int, ...]
    rows: int
    predicted_s: float | None
    wake_at: float | None
    reason: str


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Says which requests leave together, or until when they wait for company."""
    members, rows, cause = _gather(snapshot.waiting, state, settings, now)
    predicted = predict(state, rows)
    told = f"{len(members)} of {len(snapshot.waiting)} requests, {rows} of {settings.max_rows} rows"
    if predicted is not None:
        told += f", {predicted * 1000:.3g} ms expected"
    if not members:
        return Decision(Action.WAIT, Cause.NONE, (), 0, None, None, "nothing is queued that may go on"), state
    if cause is Cause.SIZE:
        return Decision(Action.LEAVE, cause, members, rows, predicted, None, f"full: {told}"), state
    if cause is Cause.DEADLINE:
        reason = f"with more rows a deadline would pass: {told}"
        return Decision(Action.LEAVE, cause, members, rows, predicted, None, reason), state
    alone = settings.max_delay_s <= 0 or snapshot.waiting[members[0]].kind is None
    if snapshot.granted or alone or predicted is None:
        reason = f"{'a device is free' if snapshot.granted else 'nothing to wait for'}: {told}"
        return Decision(Action.LEAVE, Cause.AT_ONCE, members, rows, predicted, None, reason), state
    due = min(snapshot.waiting[member].arrived for member in members) + settings.max_delay_s
    ends = [_target(snapshot.waiting[member], state, settings, now) for member in members]
    latest = min(ends) - predicted - settings.margin_s
    if min(due, latest) <= now:
        cause = Cause.DEADLINE if latest <= now else Cause.DELAY
        why = "no time is left to wait" if latest <= now else f"waited for {settings.max_delay_s * 1000:.3g} ms"
        return Decision(Action.LEAVE, cause, members, rows, predicted, None, f"{why}: {told}"), state
    wake_at = min(due, latest)
    reason = f"waits {(wake_at - now) * 1000:.3g} ms more for company: {told}"
    return Decision(Action.WAIT, Cause.NONE, members, rows, predicted, wake_at, reason), state


def predict(state: State, rows: int) -> float | None:
    """Upper estimate of the time that an execution of `rows` takes, seconds; None where nothing is known."""
    timing = _nearest(state, rows)
    if timing is None:
        return None
    return timing.bound_s * max(1.0, rows / timing.rows)


def typical(state: State, rows: int) -> float | None:
    """What an execution of `rows` takes on average, seconds; None where nothing is known."""
    timing = _nearest(state, rows)
    if timing is None:
        return None
    return timing.mean_s * max(1.0, rows / timing.rows)


def learn(state: State, rows: int, seconds: float, settings: Settings) -> State:
    """The state after an execution of `rows` that took `seconds`."""
    rows = max(rows, 1)
    known = state.profile.get(rows.bit_length())
    if known is None:
        # One measurement says nothing about the spread; half of it is RFC 6298's guess.
        latest = Timing(rows, seconds, seconds / 2)
    else:
        weight = settings.smoothing
        latest = Timing(
            known.rows + weight * (rows - known.rows),
            known.mean_s + weight * (seconds - known.mean_s),
            known.deviation_s + weight * (abs(seconds - known.mean_s) - known.deviation_s),
        )
    return State(MappingProxyType({**state.profile, rows.bit_length(): latest}))


def _nearest(state: State, rows: int) -> Timing | None:
    """Of about so many rows, else of the next fewer, else of the next more."""
    bits = max(rows, 1).bit_length()
    exact = state.profile.get(bits)
    if exact is not None or not state.profile:
        return exact
    fewer = max((known for known in state.profile if known < bits), default=None)
    return state.profile[min(state.profile) if fewer is None else fewer]


def _target(waiting: Waiting, state: State, settings: Settings, now: float) -> float:
    """When a request should be answered: its objective, or its deadline where the objective is lost."""
    if settings.objective_s > 0:
        wanted = min(waiting.deadline, waiting.arrived + settings.objective_s)
        if wanted - now > (predict(state, waiting.rows) or 0.0):
            return wanted
    return waiting.deadline


def _gather(
    waiting: Sequence[Waiting], state: State, settings: Settings, now: float
) -> tuple[tuple[int, ...], int, Cause]:
    """The first request that is still in time, and those behind it that fit: positions, rows, and what kept
    others out: SIZE, DEADLINE, or NONE."""
    members: list[int] = []
    rows = size_bytes = 0
    ends, cause = float("inf"), Cause.NONE
    kind: Hashable = None
    for position, candidate in enumerate(waiting):
        if candidate.deadline <= now:
            continue
        if members:
            if candidate.kind != kind:
                continue
            more = rows + candidate.rows
            if more > settings.max_rows or size_bytes + candidate.size_bytes > settings.max_bytes:
                # Smaller ones behind it may not overtake it for ever: order within a kind is kept.
                return tuple(members), rows, Cause.SIZE
            end = _target(candidate, state, settings, now)
            predicted = predict(state, more)
            late = predicted is not None and now + predicted + settings.margin_s > min(ends, end)
            if late and not _late_anyway(min(ends, end), state, candidate.rows, settings, now):
                return tuple(members), rows, Cause.DEADLINE
            ends = min(ends, end)
        else:
            kind, ends = candidate.kind, _target(candidate, state, settings, now)
        members.append(position)
        rows, size_bytes = rows + candidate.rows, size_bytes + candidate.size_bytes
        if kind is None:
            break
        if rows >= settings.max_rows:
            cause = Cause.SIZE
            break
    return tuple(members), rows, cause


def _late_anyway(end: float, state: State, rows: int, settings: Settings, now: float) -> bool:
    """Whether the estimate says that even alone it would be late: then keeping others out helps nobody."""
    predicted = predict(state, rows)
    return predicted is not None and now + predicted + settings.margin_s > end
