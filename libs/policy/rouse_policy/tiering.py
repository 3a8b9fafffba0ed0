"""Which sleeping models keep their weights in host memory, and which wait on disk: the tier that Torpor leaves open.

The rule is the five-minute rule (Gray and Putzolu, SIGMOD 1987): a copy in memory is worth its room while the next
use is expected sooner than bringing it back is worth in room. A model whose return takes `return_s` and whose copy
takes a part p of host memory breaks even after

    weight * return_s / p   seconds,

`weight` being how many seconds of all host memory one second of a request's waiting is worth. So large models that are
read fast leave first, small ones that are slow to come back stay for long. When the next request is expected is
`demand`'s to say. A model that comes back at known intervals is brought back ahead of its request, by the same rule:
once it is expected within `ahead` of that time, and if there is room that nobody else needs.

What an instance serves, what is being read and what was just staged has to stay, whatever this says (`in_use`).
"""

from __future__ import annotations

from dataclasses import dataclass

from rouse_policy import demand, keep_alive


@dataclass(frozen=True)
class Copy:
    """A model's weights on a node.

    Args:
        digest: its artefact.
        size_bytes: what they take of host memory.
        idle_s: how long no request came for it.
        gaps: between its earlier requests.
        return_s: how long bringing it from disk to host memory takes, seconds.
        in_memory: whether it is in host memory, or on disk only.
        in_use: why it must stay; empty where it may go.
    """

    digest: str
    size_bytes: int
    idle_s: float
    gaps: keep_alive.State
    return_s: float
    in_memory: bool = True
    in_use: str = ""


@dataclass(frozen=True)
class Snapshot:
    """Host memory of a node, what of it is free, and the models that have their weights there or on disk."""

    capacity_bytes: int
    free_bytes: int
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class State:
    """What was decided before shows in where the copies are."""


@dataclass(frozen=True)
class Settings:
    """Args:
    weight: how many seconds of the whole host memory one second of a request's waiting is worth; 0 has nobody leave.
    min_idle_s: nobody leaves sooner.
    ahead: the part of the time to break even within which a request has to be expected for a return ahead of it.
    """

    weight: float = 100.0
    min_idle_s: float = 300.0
    ahead: float = 0.5


@dataclass(frozen=True)
class Move:
    """A model that changes its tier, and why, with the numbers."""

    digest: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """Who leaves host memory for disk, who comes back from there, and why."""

    leave: tuple[Move, ...]
    bring: tuple[Move, ...]
    reason: str


def break_even_s(copy: Copy, capacity_bytes: int, settings: Settings) -> float:
    """How long the copy's room is worth less than its return, seconds."""
    return settings.weight * copy.return_s * capacity_bytes / copy.size_bytes


def loss(copy: Copy) -> float:
    """What a byte of the copy's room saves: seconds of waiting a second. Who has least of it leaves first when room is
    needed; a model of which nothing is known but its last use counts by that alone."""
    wait_s = demand.expected_wait_s(copy.gaps, copy.idle_s)
    return copy.return_s / max(wait_s, 1e-3) / copy.size_bytes


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Looks at every copy by itself; returns share the room that is free. `now` does not matter to it."""
    if settings.weight <= 0:
        return Decision((), (), "nobody leaves: the weight is 0"), state
    leave: list[Move] = []
    coming: list[tuple[float, Copy, str]] = []
    for copy in snapshot.copies:
        wait_s = demand.expected_wait_s(copy.gaps, copy.idle_s)
        even_s = break_even_s(copy, snapshot.capacity_bytes, settings)
        numbers = (
            f"idle for {copy.idle_s:.3g} s, next request expected in {wait_s:.3g} s, its return takes "
            f"{copy.return_s:.3g} s and is worth {even_s:.3g} s of its room"
        )
        if copy.in_memory:
            if not copy.in_use and copy.idle_s >= settings.min_idle_s and wait_s > even_s:
                leave.append(Move(copy.digest, numbers))
        elif demand.has_been_away_longer(copy.gaps, copy.idle_s) and wait_s <= settings.ahead * even_s:
            coming.append((wait_s, copy, numbers))
    free, bring = snapshot.free_bytes, []
    for _, copy, numbers in sorted(coming, key=lambda entry: (entry[0], entry[1].digest)):
        if copy.size_bytes <= free:
            free -= copy.size_bytes
            bring.append(Move(copy.digest, numbers))
    reason = f"{len(snapshot.copies)} models, {len(leave)} leave host memory, {len(bring)} come back ahead of a request"
    return Decision(tuple(leave), tuple(bring), reason), state
