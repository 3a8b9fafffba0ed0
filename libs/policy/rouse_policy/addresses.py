"""Which virtual addresses belong to a model.

A model's range is chosen once and holds on every node and after every restart, so that no pointer into its weights is
ever translated (neither Torpor's table of addresses nor Medusa's index pointers). It has three regions, one after the
other: weights, state and scratch. Addresses cost nothing until memory is mapped, so regions are generous.

A newcomer comes after all that is there, for as long as there is room: addresses that were in use before are taken
again only when nothing else is left, and then from the smallest gap that fits.
"""

from __future__ import annotations

from dataclasses import dataclass

GRANULE_BYTES = 32 << 20
BASE = 0x5000_0000_0000
# Linux puts position-independent programs, and their heaps behind them, at random places from 0x5555_5555_4000 on:
# beyond this end one start of a process in many would find its own code within a model's range.
END = 0x5500_0000_0000


@dataclass(frozen=True)
class Extent:
    """Addresses from `base` up to `base + size_bytes`."""

    base: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.base + self.size_bytes


@dataclass(frozen=True)
class Regions:
    """Bytes of the three parts of a range, in their order; multiples of the granule."""

    weights_bytes: int
    state_bytes: int
    scratch_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.weights_bytes + self.state_bytes + self.scratch_bytes


@dataclass(frozen=True)
class Snapshot:
    """Ranges that are given out, in any order, and the size of a newcomer's weights."""

    taken: tuple[Extent, ...]
    weights_bytes: int


@dataclass(frozen=True)
class State:
    """Nothing is remembered beside the ranges that are given out."""


@dataclass(frozen=True)
class Settings:
    """Where ranges may lie, in multiples of what, and how large state and scratch are: twice the weights, in bounds."""

    base: int = BASE
    end: int = END
    granule_bytes: int = GRANULE_BYTES
    least_bytes: int = 512 << 20
    most_bytes: int = 64 << 30


@dataclass(frozen=True)
class Decision:
    """Where the range begins, None where no gap is large enough; its regions; and why there."""

    base: int | None
    regions: Regions
    reason: str


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Chooses the range of one more model."""
    regions = _regions(snapshot.weights_bytes, settings)
    gaps = _gaps(snapshot.taken, settings)
    need = regions.size_bytes
    if gaps and gaps[-1].end == settings.end and gaps[-1].size_bytes >= need:
        return Decision(gaps[-1].base, regions, f"{need} B after the {len(snapshot.taken)} ranges there are"), state
    fitting = [gap for gap in gaps if gap.size_bytes >= need]
    if not fitting:
        largest = max((gap.size_bytes for gap in gaps), default=0)
        text = f"needs {need} B of addresses; the largest gap between {len(snapshot.taken)} ranges has {largest} B"
        return Decision(None, regions, text), state
    gap = min(fitting, key=lambda gap: (gap.size_bytes, gap.base))
    return Decision(gap.base, regions, f"{need} B in the smallest gap that fits, of {gap.size_bytes} B"), state


def _regions(weights_bytes: int, settings: Settings) -> Regions:
    beside = _up(min(max(2 * weights_bytes, settings.least_bytes), settings.most_bytes), settings.granule_bytes)
    return Regions(_up(weights_bytes, settings.granule_bytes), beside, beside)


def _gaps(taken: tuple[Extent, ...], settings: Settings) -> list[Extent]:
    """What is free, in whole granules, in the order of addresses."""
    gaps, position = [], _up(settings.base, settings.granule_bytes)
    for extent in sorted(taken, key=lambda extent: extent.base):
        end = min(extent.base, settings.end)
        if end > position:
            gaps.append(Extent(position, end - position))
        position = max(position, _up(extent.end, settings.granule_bytes))
    if position < settings.end:
        gaps.append(Extent(position, settings.end - position))
    return gaps


def _up(size: int, granule: int) -> int:
    return -(-size // granule) * granule
