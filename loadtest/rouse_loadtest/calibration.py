"""What the steps of a request cost on this machine, measured under a stretch of load: a profile for the simulator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rouse_loadtest.fleet import Asked
from rouse_loadtest.playing import Answered
from rouse_simulator.measured import Levels, Machine

# Lines of gpu-server in a mesh's log.
STEP = re.compile(
    r"(?P<at>\S+) \S+ +gpu-server +trace=\S+ (?P<step>evicted|swapped in) function=\S+ .* took_ms=(?P<ms>[0-9.]+) "
)
EVICTED, SWAPPED_IN = "evicted", "swapped in"
# Costs beside so many other requests or more count together, and so do those of a level that has fewer than LEAST.
MOST_OTHERS, LEAST = 4, 20


@dataclass(frozen=True)
class Stretch:
    """Requests that were played to a mesh, and when; the first was due at `began` or later."""

    began: datetime
    ended: datetime
    answers: Sequence[Answered]

    def under_way(self, at_s: float) -> int:
        """Requests whose clients waited, so long after the begin."""
        return sum(answer.due <= at_s < answer.due + answer.latency_s for answer in self.answers)


@dataclass(frozen=True)
class Logged:
    """A step of gpu-server, which began so long after its stretch did."""

    stretch: Stretch
    began_s: float
    ms: float


def logged(step: str, lines: Iterable[str], stretches: Sequence[Stretch]) -> list[Logged]:
    """Each time that a step of gpu-server ended within one of the stretches, by the mesh's log."""
    found = []
    for line in lines:
        match = STEP.match(line)
        if match is None or match["step"] != step:
            continue
        at, ms = datetime.fromisoformat(match["at"]), float(match["ms"])
        for stretch in stretches:
            if stretch.began <= at <= stretch.ended:
                found.append(Logged(stretch, (at - stretch.began).total_seconds() - ms / 1000, ms))
    return found


def levels(costs: Iterable[tuple[int, float]]) -> Levels:
    """Costs in milliseconds by how many other requests were under way, 0 at least; as far up as there are LEAST of
    them, and what is rarer counts together."""
    by_others: list[list[float]] = [[] for _ in range(MOST_OTHERS + 1)]
    for others, ms in costs:
        by_others[min(max(others, 0), MOST_OTHERS)].append(ms)
    while len(by_others) > 1 and len(by_others[-1]) < LEAST:
        rare = by_others.pop()
        by_others[-1] += rare
    # None at a lower level than the highest: what is measured above it is nearest.
    for lower in reversed(range(len(by_others) - 1)):
        by_others[lower] = by_others[lower] or by_others[lower + 1]
    return tuple(tuple(level) for level in by_others)


def machine(
    name: str, weights_bytes: int, alone: Sequence[Asked], stretches: Sequence[Stretch], log: Sequence[str]
) -> Machine:
    """A profile of the steps as they were under load; only of the lease, which waiting hides there, as it is alone.

    Args:
        alone: requests one after the other, each for another function than the one before it: a lease that rests is
            taken over by the next request of its function, for next to nothing.

    Raises ValueError naming a step that was never seen.
    """
    ways: list[tuple[int, float]] = []
    runs: list[tuple[int, float]] = []
    first_runs: list[tuple[int, float]] = []
    for stretch in stretches:
        for answer in stretch.answers:
            way_s, run_s = max(0.0, answer.latency_s - answer.node_s), _run_s(answer)
            ways.append((stretch.under_way(answer.due) - 1, way_s * 1000))
            began_s = answer.due + answer.latency_s - way_s / 2 - run_s
            (first_runs if answer.swapped else runs).append((stretch.under_way(began_s) - 1, run_s * 1000))
    found = Machine(
        name=name,
        weights_bytes=weights_bytes,
        way_ms=levels(ways),
        lease_ms=(tuple(a.queue_s * 1000 for a in alone if a.swap_s == 0),),
        first_lease_ms=(tuple(a.queue_s * 1000 for a in alone if a.swap_s > 0),),
        load_ms=_of_loads(SWAPPED_IN, log, stretches),
        run_ms=levels(runs),
        first_run_ms=levels(first_runs),
        evict_ms=_of_loads(EVICTED, log, stretches),
    )
    found.check()
    return found


def _of_loads(step: str, log: Sequence[str], stretches: Sequence[Stretch]) -> Levels:
    """Of a step that is taken for one of the requests that are under way."""
    return levels((one.stretch.under_way(one.began_s) - 1, one.ms) for one in logged(step, log, stretches))


def _run_s(answer: Answered) -> float:
    """What is left of the time on the node without waiting and loading."""
    return max(0.0, answer.node_s - answer.queue_s - answer.swap_s)
