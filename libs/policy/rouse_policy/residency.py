"""Which models stay in a node's host memory and on its disk when a newcomer needs room: bounded by bytes.

Both tiers follow one rule. What is in use stays: in host memory the images of models that an instance
serves, on disk the artefacts of versions that the node works with. Of the rest, those leave first whose room
saves least waiting (`tiering.loss`), of equals the least recently used, and no more of it than a newcomer needs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """Something that a tier holds.

    Args:
        digest: digest of its artefact.
        size_bytes: what dropping it gives back.
        last_used_at: seconds, on any clock that all entries share.
        in_use: why it must stay; empty where it may go.
        loss: what its room saves, seconds of waiting a byte and second.
    """

    digest: str
    size_bytes: int
    last_used_at: float
    in_use: str = ""
    loss: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    """A tier and a newcomer of `need_bytes`; `used_bytes` counts what is being brought in as well."""

    capacity_bytes: int
    used_bytes: int
    entries: tuple[Entry, ...]
    need_bytes: int


@dataclass(frozen=True)
class State:
    """The tiers remember nothing beside what they hold."""


@dataclass(frozen=True)
class Settings:
    """There is nothing to set."""


@dataclass(frozen=True)
class Decision:
    """Whether the newcomer fits once `drop` (digests) is gone, and why; without room nothing is dropped."""

    fits: bool
    drop: tuple[str, ...]
    reason: str


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Chooses what leaves a tier for a newcomer."""
    missing = snapshot.used_bytes + snapshot.need_bytes - snapshot.capacity_bytes
    idle = sorted((e for e in snapshot.entries if not e.in_use), key=lambda e: (e.loss, e.last_used_at, e.digest))
    drop: list[Entry] = []
    while missing > sum(e.size_bytes for e in drop) and len(drop) < len(idle):
        drop.append(idle[len(drop)])
    numbers = (
        f"needs {snapshot.need_bytes} B; {snapshot.used_bytes} of {snapshot.capacity_bytes} B used, "
        f"{sum(e.size_bytes for e in idle)} B of {len(idle)} entries idle"
    )
    if missing > sum(e.size_bytes for e in drop):
        return Decision(False, (), numbers), state
    return Decision(True, tuple(e.digest for e in drop), numbers), state
