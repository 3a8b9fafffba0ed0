"""What became of a function's requests: latencies in a histogram of high dynamic range, errors by reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hdrh.histogram import HdrHistogram

from rouse_loadtest.report import figure

# Latencies are told apart to three digits, from a microsecond to ten minutes; longer ones count as that.
LOWEST_US, HIGHEST_US, DIGITS = 1, 600_000_000, 3
HEADER = ("function", "requests", "p50 ms", "p98 ms", "p99 ms", "within objective", "errors")


def _histogram() -> HdrHistogram:
    return HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)


@dataclass
class Tally:
    """Requests of one function, or of many together.

    Args:
        objective_s: within which each is to be answered, from its intended arrival; infinite: there is none.
        sent: requests that were due.
        in_time: answered within the objective.
        errors: the others, by reason.
    """

    objective_s: float = math.inf
    sent: int = 0
    in_time: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    histogram: HdrHistogram = field(default_factory=_histogram)

    def answered(self, latency_s: float) -> None:
        """One more request, answered so long after it was due."""
        self.sent += 1
        self.in_time += latency_s <= self.objective_s
        self.histogram.record_value(min(max(round(latency_s * 1e6), LOWEST_US), HIGHEST_US))

    def failed(self, reason: str) -> None:
        """One more request, which was not answered."""
        self.sent += 1
        self.errors[reason] += 1

    @property
    def answers(self) -> int:
        return int(self.histogram.get_total_count())

    @property
    def share_in_time(self) -> float:
        """Of all that were due; 1 where none was."""
        return self.in_time / self.sent if self.sent else 1.0

    def compliant(self, percentile: float) -> bool:
        """Whether so large a part was answered within the objective; nothing due is compliant."""
        return self.in_time >= percentile * self.sent - 1e-9

    def quantile_s(self, quantile: float) -> float:
        """The latency that this part of all requests stayed within; infinite where too many were not answered at all,
        0 where none was due."""
        if not self.sent:
            return 0.0
        rank = max(1, math.ceil(quantile * self.sent - 1e-9))
        if rank > self.answers:
            return math.inf
        return float(self.histogram.get_value_at_percentile(100.0 * rank / self.answers)) / 1e6

    def row(self, name: str) -> list[str]:
        """For a table with HEADER."""
        quantiles = [figure(self.quantile_s(q) * 1000) for q in (0.5, 0.98, 0.99)]
        errors = ", ".join(f"{reason} {count}" for reason, count in self.errors.most_common()) or "none"
        return [name, str(self.sent), *quantiles, f"{self.share_in_time:.1%}", errors]


def together(tallies: Iterable[Tally]) -> Tally:
    """All of them as one; each request counts by its own function's objective."""
    whole = Tally()
    for tally in tallies:
        whole.sent += tally.sent
        whole.in_time += tally.in_time
        whole.errors += tally.errors
        whole.histogram.add(tally.histogram)
    return whole


def compliant(tallies: Sequence[Tally], percentile: float = 0.98) -> int:
    """Functions that kept their objective."""
    return sum(tally.compliant(percentile) for tally in tallies)
