"""How far a function is from its objective, and whose requests go first because of it (Torpor, 5.2 and A.3).

A function keeps its objective where at least the share `percentile` of its requests is answered within the deadline.
With n requests answered, m of them in time, the *required request count*

    RRC = (percentile * n - m) / (1 - percentile)

is how many further requests it would have to answer in time, one after the other, to keep it: at most 0 where it does.

**Groups.** The functions sorted by RRC, the first k are the high group, k the largest number with

    sum of max(RRC, 0) over the first k  <=  alpha * sum of max(RRC, 0) over all.

The high group goes first, and in it the highest RRC: who misses the objective by little comes before who keeps it. Then
the low group, the lowest RRC first. What the paper leaves open follows from the definition, and is meant so here:

- Where every RRC is at most 0, both sums are 0 and everybody is in the high group.
- Where alpha times the sum is 0, or less than the lowest positive RRC, the high group is all who keep their objective
  and nobody who misses it.
- Functions with the same RRC are sorted by their name, so that k is unique.

**Alpha** (Algorithm 2) doubles, up to 1, after a period in which the share of functions that keep their objective rose
by more than `threshold`, and halves where it fell by more. It never falls below `min_alpha`: from 0 no doubling would
lead back. The paper gives neither the period nor the first alpha; both are settings.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

# Of a percentile that is written in decimals, n * percentile is off by less than this for any n that is kept.
DIGITS = 9


class Record(NamedTuple):
    """Requests of a function that were answered, and those of them in time."""

    answered: int = 0
    in_time: int = 0


@dataclass(frozen=True)
class Settings:
    """Args:
    percentile: the share of requests that is to be answered in time, below 1.
    scalar: what alpha is multiplied by, or divided.
    threshold: change of the share of compliant functions that moves alpha.
    period_s: seconds between two looks at that share.
    first_alpha, min_alpha: where alpha starts, and its lower bound.
    memory: answered requests after which a function's counts are halved, so that old ones weigh less and less.
    """

    percentile: float = 0.98
    scalar: float = 2.0
    threshold: float = 0.04
    period_s: float = 10.0
    first_alpha: float = 1.0
    min_alpha: float = 1 / 64
    memory: int = 100_000


@dataclass(frozen=True, slots=True)
class Alpha:
    """Alpha, the compliant share at the end of the last period (None before the first), and when the period ends."""

    value: float
    ratio: float | None = None
    until: float | None = None


def required(record: Record, percentile: float) -> float:
    """The required request count."""
    return round((percentile * record.answered - record.in_time) / (1 - percentile), DIGITS)


def after(record: Record, in_time: bool, settings: Settings) -> Record:
    """The record after one more answer."""
    answered, kept = record.answered + 1, record.in_time + in_time
    if answered >= settings.memory:
        # Rounded towards compliance at most by one request.
        answered, kept = answered // 2, (kept + 1) // 2
    return Record(answered, kept)


def boundary(behind: Sequence[tuple[float, str]], alpha: float) -> tuple[float, str]:
    """The last function of the high group, as (RRC, name): all up to it are in the group.

    Args:
        behind: (RRC, name) of the functions with a positive RRC, ascending.
        alpha: 0 to 1.
    """
    sums = list(accumulate(map(itemgetter(0), behind)))
    if not sums:
        return (0.0, "")
    high = bisect_right(sums, round(alpha * sums[-1], DIGITS)) if alpha < 1 else len(sums)
    return behind[high - 1] if high else (0.0, "")


def rank(rrc: float, name: str, last_high: tuple[float, str]) -> tuple[bool, float]:
    """The key of a function's requests: the lowest goes first. `last_high` is the group's boundary."""
    low = rrc > 0 and (rrc, name) > last_high
    return (low, rrc if low else -rrc)


def configure(alpha: Alpha, ratio: float, settings: Settings, now: float) -> Alpha:
    """Algorithm 2: alpha after a look at the share of functions that keep their objective."""
    if alpha.until is None:
        return Alpha(alpha.value, None, now + settings.period_s)
    if now < alpha.until:
        return alpha
    value = alpha.value
    if alpha.ratio is not None and ratio - alpha.ratio > settings.threshold:
        value = min(value * settings.scalar, 1.0)
    elif alpha.ratio is not None and ratio - alpha.ratio < -settings.threshold:
        value = max(value / settings.scalar, settings.min_alpha)
    return Alpha(value, ratio, now + settings.period_s)
