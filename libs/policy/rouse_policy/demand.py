"""When a model's next request may be expected, from the gaps between its earlier ones.

The gaps are counted in the histogram of `keep_alive`. Of a model that has been idle for a while only the gaps that were
longer still can tell; where there was none, it is taken to stay away as long again as it has been away.
"""

from __future__ import annotations

from rouse_policy import keep_alive

# What is taken for a gap past the histogram's last end, seconds.
_ENDS = (*keep_alive.ENDS, 1.5 * keep_alive.ENDS[-1])


def expected_wait_s(gaps: keep_alive.State, idle_s: float) -> float:
    """Seconds until the next request of a model that has had none for `idle_s`."""
    longer = _longer(gaps, idle_s)
    seen = sum(count for _, count in longer)
    return sum((end - idle_s) * count for end, count in longer) / seen if seen else idle_s


def has_been_away_longer(gaps: keep_alive.State, idle_s: float) -> bool:
    """Whether the model has come back before after more than `idle_s`."""
    return bool(_longer(gaps, idle_s))


def _longer(gaps: keep_alive.State, idle_s: float) -> list[tuple[float, int]]:
    return [(end, count) for end, count in zip(_ENDS, gaps.counts, strict=True) if end > idle_s and count]
