"""What the steps of a request cost on this machine, measured under a stretch of load: a profile for the simulator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rouse_loadtest.fleet import Asked
from rouse_loadtest.playing import Answered
from rouse_simulator.measured import Machine

# Lines of gpu-server in a mesh's log.
STEP = re.compile(
    r"(?P<at>\S+) \S+ +gpu-server +trace=\S+ (?P<step>evicted|swapped in) function=\S+ .* took_ms=(?P<ms>[0-9.]+) "
)
EVICTED, SWAPPED_IN = "evicted", "swapped in"


@dataclass(frozen=True)
class Stretch:
    """Requests that were played to a mesh, and when."""

    began: datetime
    ended: datetime
    answers: Sequence[Answered]


def logged_ms(step: str, lines: Iterable[str], stretches: Sequence[Stretch]) -> tuple[float, ...]:
    """What a step of gpu-server took each time that it ended within one of the stretches, by the mesh's log."""
    found = []
    for line in lines:
        match = STEP.match(line)
        if match is None or match["step"] != step:
            continue
        at = datetime.fromisoformat(match["at"])
        if any(stretch.began <= at <= stretch.ended for stretch in stretches):
            found.append(float(match["ms"]))
    return tuple(found)


def machine(
    name: str, weights_bytes: int, alone: Sequence[Asked], stretches: Sequence[Stretch], log: Sequence[str]
) -> Machine:
    """A profile of the steps as they were under load; only of the lease, which waiting hides there, as it is alone.

    Args:
        alone: requests one after the other, each for another function than the one before it: a lease that rests is
            taken over by the next request of its function, for next to nothing.

    Raises ValueError naming a step that was never seen.
    """
    answers = [answer for stretch in stretches for answer in stretch.answers]
    found = Machine(
        name=name,
        weights_bytes=weights_bytes,
        way_ms=tuple(max(0.0, a.latency_s - a.node_s) * 1000 for a in answers),
        lease_ms=tuple(a.queue_s * 1000 for a in alone if a.swap_s == 0),
        first_lease_ms=tuple(a.queue_s * 1000 for a in alone if a.swap_s > 0),
        load_ms=logged_ms(SWAPPED_IN, log, stretches),
        run_ms=tuple(_run_ms(a) for a in answers if not a.swapped),
        first_run_ms=tuple(_run_ms(a) for a in answers if a.swapped),
        evict_ms=logged_ms(EVICTED, log, stretches),
    )
    found.check()
    return found


def _run_ms(answer: Answered) -> float:
    """What is left of the time on the node without waiting and loading."""
    return max(0.0, answer.node_s - answer.queue_s - answer.swap_s) * 1000
