"""How long a function keeps its device after a request: early binding with a lifespan from its history.

INFless-KA of Torpor's comparison (7.3). A function's gaps between requests are counted in a histogram; after a request
it keeps its memory as long as the `percentile` of its gaps, within bounds (Shahrad et al., ATC 2020, section 4.2, whose
histogram INFless takes up). Before there are enough gaps, it keeps it for the longest time. INFless joins a long and a
short history and warms up ahead of time; here there is one history, and it starts a function when a request needs it.
Torpor's authors gave each function the percentile of its gaps in the very trace that they then played: `lifespan`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Upper ends of the histogram's bins, seconds: each half as long again as the one before, up to a week.
ENDS = tuple(0.1 * 1.5**i for i in range(40))


@dataclass(frozen=True, slots=True)
class State:
    """Gaps counted by bin; the last bin holds all that are longer."""

    counts: tuple[int, ...] = (0,) * (len(ENDS) + 1)


@dataclass(frozen=True)
class Settings:
    """Args:
    percentile: the share of gaps that the lifespan covers.
    min_s, max_s: bounds of the lifespan, seconds.
    min_gaps: gaps before which the longest lifespan holds.
    """

    percentile: float = 0.99
    min_s: float = 1.0
    max_s: float = 600.0
    min_gaps: int = 5


@dataclass(frozen=True, slots=True)
class Decision:
    """How long the function stays after its last request, seconds, and why."""

    keep_s: float
    reason: str


def learn(state: State, gap_s: float) -> State:
    """The histogram after one more gap."""
    place = next((i for i, end in enumerate(ENDS) if gap_s <= end), len(ENDS))
    counts = list(state.counts)
    counts[place] += 1
    return State(tuple(counts))


def lifespan(gaps: Sequence[float], settings: Settings) -> float:
    """The percentile of gaps that are all known, between the two nearest of them, within the bounds."""
    if len(gaps) < settings.min_gaps:
        return settings.max_s
    ordered = sorted(gaps)
    place = settings.percentile * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return min(max(low + (high - low) * (place - math.floor(place)), settings.min_s), settings.max_s)


def decide(snapshot: None, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """How long a function stays that was just used. The history is the state; `now` does not matter to it."""
    total = sum(state.counts)
    if total < settings.min_gaps:
        return Decision(settings.max_s, f"{total} gaps are known, {settings.min_gaps} are needed"), state
    wanted, seen = settings.percentile * total, 0
    for count, end in zip(state.counts, (*ENDS, settings.max_s), strict=True):
        seen += count
        if seen >= wanted:
            keep_s = min(max(end, settings.min_s), settings.max_s)
            return Decision(keep_s, f"{seen} of {total} gaps are at most {end:.3g} s"), state
    raise AssertionError("the bins hold all gaps")
