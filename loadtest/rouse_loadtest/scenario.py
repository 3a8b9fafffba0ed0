"""What a scenario is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rouse_loadtest.place import HOST, Place
from rouse_loadtest.report import Measure


@dataclass(frozen=True)
class Run:
    """How a scenario is to run.

    Args:
        folder: for its files; gone afterwards.
        plots: where pictures go, one file a picture.
        quick: few short rounds, to see that it works; its figures say little.
        place: where it computes.
    """

    folder: Path
    plots: Path
    quick: bool
    place: Place = HOST


@dataclass(frozen=True)
class Scenario:
    """One thing to measure.

    Args:
        name, title: for the list.
        minutes: what it costs, on two cores, without installing peers.
        measure: does it, and prints what is worth seeing on the way.
        anywhere: it computes on whatever device the run names; else on the host only.
    """

    name: str
    title: str
    minutes: float
    measure: Callable[[Run], Sequence[Measure]]
    anywhere: bool = False
