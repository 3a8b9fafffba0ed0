"""Which models leave a device so that another fits (Torpor, section 5.4, and what users of its peers miss).

Eviction copies nothing: the host copy always stays. What is executing, being loaded or leaving is no
candidate at all. Among the candidates:

1. Copies of a model that other devices hold as well go first: a full pool has one copy of each model.
2. A model that requests wait for whose turn is before the claimant's is spared.
3. A model that requests wait for whose turn comes later is spared until the claimant is overdue: queued requests of a
   resident model run before it leaves (coalescing), but not for ever.
4. A hot model, one whose requests come closer together than `min_residency_s`, is spared for that time
   after its load, or until the claimant is overdue: two hot models do not evict each other at every request.
5. The copy of a pinned model that stays on a device never leaves.
6. A claimant that is itself on another device evicts only copies, until `may_evict_last` says that it
   has waited for that device long enough.
7. For a further copy (`further`) nothing leaves that would soon have to come back, however long the claimant waits:
   what requests wait for, what was loaded less than `min_residency_s` ago, and what was used within `away_gaps` of the
   mean time between its requests, unless the claimant's requests come `rarer` times as often. Else two models that have
   more requests than a device can answer take turns at evicting each other's copies, and each load comes on top of
   what there is too much of already.
8. The rest goes light models first, whose next swap costs their requests little (see `heaviness`), heavy ones after
   them, each by least recent use; and no more of it than is needed. By `Order.LRU` heaviness does not count: the
   baseline Torpor-LRU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Order(Enum):
    """In which order models leave that may."""

    POOL = "POOL"
    LRU = "LRU"


@dataclass(frozen=True)
class Candidate:
    """A model that rests on the device.

    Args:
        version: its version id.
        size_bytes, working_bytes: device memory of its weights; memory beside them while it executes.
        loaded_at, last_used_at: seconds, on the clock of `now`.
        gap_s: mean time between its recent requests, seconds; infinite where unknown.
        is_copy: another device holds it as well.
        first_turn: place of the first request that waits for it in the order in which requests are served; None
            where none does.
        pinned: this copy stays whatever comes.
        heavy: swapping it in from the host slows its requests down.
    """

    version: str
    size_bytes: int
    working_bytes: int
    loaded_at: float
    last_used_at: float
    gap_s: float = float("inf")
    is_copy: bool = False
    first_turn: int | None = None
    pinned: bool = False
    heavy: bool = False


@dataclass(frozen=True)
class Claim:
    """Who needs the memory.

    Args:
        turn: place of the first request that needs it in the order in which requests are served.
        size_bytes, working_bytes: as for candidates.
        overdue: it has waited past its patience.
        may_evict_last: it may evict the last copy of a model; False while it waits for another device.
        further: another device holds its model already, or loads it: this would be a further copy.
        gap_s: as for candidates.
    """

    turn: int
    size_bytes: int
    working_bytes: int
    overdue: bool = False
    may_evict_last: bool = True
    further: bool = False
    gap_s: float = float("inf")


@dataclass(frozen=True)
class Snapshot:
    """One device and one claim.

    Args:
        capacity_bytes: the device's memory.
        kept_bytes: weights on it that are no candidates.
        kept_working_bytes: largest working memory among those.
        candidates: models that rest on it.
    """

    capacity_bytes: int
    kept_bytes: int
    kept_working_bytes: int
    candidates: tuple[Candidate, ...]
    claim: Claim


@dataclass(frozen=True)
class State:
    """Eviction remembers nothing."""


@dataclass(frozen=True)
class Settings:
    """Args:
    min_residency_s: how long a hot model stays after its load.
    order: whether heavy models leave last.
    away_gaps: a model that was unused for so many of its mean gaps is not expected back soon.
    rarer: a further copy takes the place of what is asked for so many times as rarely, used or not.
    """

    min_residency_s: float = 0.25
    order: Order = Order.POOL
    # Of requests that come at random, one in twenty comes after a longer gap.
    away_gaps: float = 3.0
    rarer: float = 10.0


@dataclass(frozen=True)
class Victim:
    """A model that leaves, and why it and not another."""

    version: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """Args:
    fits: the claim fits once the victims are gone; without it nobody leaves.
    victims: who leaves.
    retry_at: when time alone lets more models leave; None where it does not.
    reason: in words, with the numbers.
    """

    fits: bool
    victims: tuple[Victim, ...]
    retry_at: float | None
    reason: str


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Chooses the victims for one claim on one device."""
    free: list[Candidate] = []
    spared: list[Candidate] = []
    retries: list[float] = []
    notes: list[str] = []
    for candidate in snapshot.candidates:
        note, until = spared_because(candidate, snapshot.claim, settings, now)
        if note:
            spared.append(candidate)
            notes.append(f"{candidate.version}: {note}")
            if until is not None:
                retries.append(until)
        else:
            free.append(candidate)
    if settings.order is Order.POOL:
        order = sorted(free, key=lambda c: (not c.is_copy, c.heavy, c.last_used_at, c.version))
    else:
        order = sorted(free, key=lambda c: (c.last_used_at, c.version))
    count = _shortest_prefix(snapshot, spared, order)
    if count is None:
        reason = f"needs {_mib(snapshot.claim.size_bytes)}; " + ("; ".join(notes) or "nothing can leave")
        return Decision(False, (), min(retries, default=None), reason), state
    leaving = _without_needless(snapshot, spared, order, order[:count])
    victims = tuple(Victim(c.version, _why(c, snapshot.claim, now)) for c in leaving)
    room = f"{len(victims)} of {len(snapshot.candidates)} resting models leave" if victims else "fits without evicting"
    return Decision(True, victims, None, room), state


def spared_because(
    candidate: Candidate, claim: Claim, settings: Settings, now: float
) -> tuple[str | None, float | None]:
    """Why a candidate may not leave for a claim now, and until when at most where time alone changes it."""
    if candidate.first_turn is not None and candidate.first_turn < claim.turn:
        return "a request waits for it whose turn is earlier", None
    if claim.further:
        note, until = _in_use(candidate, claim, settings, now)
        if note:
            return note, until
    if candidate.is_copy:
        return None, None
    if candidate.pinned:
        return "pinned", None
    if not claim.may_evict_last:
        return "the last copy, and the claimant is on another device", None
    if claim.overdue:
        return None, None
    if candidate.first_turn is not None:
        return "a request waits for it", None
    until = candidate.loaded_at + settings.min_residency_s
    if candidate.gap_s < settings.min_residency_s and now < until:
        return f"hot (a request every {candidate.gap_s:.3f} s) and stays {until - now:.3f} s more", until
    return None, None


def _in_use(candidate: Candidate, claim: Claim, settings: Settings, now: float) -> tuple[str | None, float | None]:
    """Why a model would soon have to come back if it left for a further copy of another one, and until when at most."""
    if candidate.first_turn is not None:
        return "a request waits for it", None
    until = candidate.loaded_at + settings.min_residency_s
    # Of what was asked for once nothing is known yet.
    if math.isfinite(candidate.gap_s) and not candidate.gap_s >= settings.rarer * claim.gap_s:
        until = max(until, candidate.last_used_at + settings.away_gaps * candidate.gap_s)
    if now < until:
        return f"in use, no further copy of another takes its place for {until - now:.3f} s more", until
    return None, None


def _fits(snapshot: Snapshot, staying: Sequence[Candidate]) -> bool:
    """A device keeps room for the largest working memory among its models, so that each can always run."""
    claim = snapshot.claim
    weights = snapshot.kept_bytes + claim.size_bytes + sum(c.size_bytes for c in staying)
    working = max([snapshot.kept_working_bytes, claim.working_bytes, *(c.working_bytes for c in staying)])
    return weights + working <= snapshot.capacity_bytes


def _shortest_prefix(snapshot: Snapshot, spared: list[Candidate], order: list[Candidate]) -> int | None:
    """How many of `order` have to leave, from the front; None where all of them are not enough."""
    if not _fits(snapshot, spared):
        return None
    claim = snapshot.claim
    weights = snapshot.kept_bytes + claim.size_bytes + sum(c.size_bytes for c in spared)
    working = max([snapshot.kept_working_bytes, claim.working_bytes, *(c.working_bytes for c in spared)])
    # From the back: as many stay as fit together.
    for position in range(len(order) - 1, -1, -1):
        weights += order[position].size_bytes
        working = max(working, order[position].working_bytes)
        if weights + working > snapshot.capacity_bytes:
            return position + 1
    return 0


def _without_needless(
    snapshot: Snapshot, spared: list[Candidate], order: list[Candidate], leaving: list[Candidate]
) -> list[Candidate]:
    """Drops victims that a later, larger one made needless, the most recently used first."""
    for candidate in reversed(leaving[:-1]):
        fewer = [c for c in leaving if c is not candidate]
        gone = {c.version for c in fewer}
        if _fits(snapshot, spared + [c for c in order if c.version not in gone]):
            leaving = fewer
    return leaving


def _why(candidate: Candidate, claim: Claim, now: float) -> str:
    if candidate.is_copy:
        return "another device holds a copy"
    idle = f"unused for {now - candidate.last_used_at:.3f} s"
    if candidate.first_turn is not None:
        return "a request waits for it whose turn is later than that of the claimant, which is overdue"
    return f"least recently used, {idle}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"
