"""On which further nodes a function's weights are kept in host memory ahead of a burst.

A node without them has to fetch an artefact before an instance there serves: seconds, just when they are fewest. So a
function is prepared for the highest demand that it lately had: its peak of arrivals, which fades by half every
`half_life_s`, times the seconds of a device that one of its requests takes, is the number of devices that its next
burst keeps busy. Nodes that serve it may give it `share` of their devices; where that is not enough, nodes are added,
those first that hold its weights already, then those with most host memory free, of which `room` at most is taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Node:
    """A node that takes requests: its devices, and the bytes of host memory that nothing uses."""

    node_id: str
    devices: int
    free_bytes: int


@dataclass(frozen=True)
class Demand:
    """What is known of a version.

    Args:
        version_id, function: for names.
        size_bytes: of its weights.
        rate: arrivals a second now; None where they are not known.
        instance_rate: requests a second that one device serves; 0 where none was measured.
        serving: nodes that have an instance of it.
        holding: nodes that have its weights in host memory or on a device.
    """

    version_id: str
    function: str
    size_bytes: int
    rate: float | None
    instance_rate: float
    serving: tuple[str, ...] = ()
    holding: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    nodes: tuple[Node, ...]
    demands: tuple[Demand, ...]


@dataclass(frozen=True)
class Peak:
    """The devices that a version kept busy at its highest, and when that was, on the clock of `now`, seconds."""

    devices: float
    at: float


@dataclass(frozen=True)
class State:
    """Peaks by version."""

    peaks: Mapping[str, Peak] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """Args:
    half_life_s: after so long a peak counts half.
    share: the part of a node's devices that one function may keep busy.
    room: the part of a node's free host memory that one function's weights may take.
    """

    half_life_s: float = 600.0
    share: float = 0.5
    room: float = 0.5


@dataclass(frozen=True)
class Copy:
    """A version whose weights are to be in a node's host memory, and why."""

    version_id: str
    node_id: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """All copies that should be there beside those of nodes that serve."""

    copies: tuple[Copy, ...]
    reason: str


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Decides for every version by itself, greatest demand first: free memory is shared."""
    peaks = {demand.version_id: _peak(demand, state, settings, now) for demand in snapshot.demands}
    free = {node.node_id: node.free_bytes for node in snapshot.nodes}
    copies: list[Copy] = []
    for demand in sorted(snapshot.demands, key=lambda d: (-peaks[d.version_id].devices, d.version_id)):
        copies += _copies(demand, peaks[demand.version_id].devices, snapshot.nodes, free, settings)
    kept = {version: peak for version, peak in peaks.items() if peak.devices > 0}
    return Decision(tuple(copies), f"{len(snapshot.demands)} versions, {len(copies)} further copies"), State(kept)


def _peak(demand: Demand, state: State, settings: Settings, now: float) -> Peak:
    before = state.peaks.get(demand.version_id)
    faded = before.devices * 0.5 ** ((now - before.at) / settings.half_life_s) if before is not None else 0.0
    busy = demand.rate / demand.instance_rate if demand.rate and demand.instance_rate > 0 else 0.0
    # Below a hundredth of a device it is forgotten.
    return Peak(max(busy, faded if faded >= 0.01 else 0.0), now)


def _copies(
    demand: Demand, peak: float, nodes: tuple[Node, ...], free: dict[str, int], settings: Settings
) -> list[Copy]:
    serving = [node for node in nodes if node.node_id in demand.serving]
    if not serving or not demand.size_bytes:
        # What nothing serves is brought where it is woken; what has no weights has nothing to be kept.
        return []
    given = settings.share * sum(node.devices for node in serving)
    others = [node for node in nodes if node.node_id not in demand.serving]
    others.sort(key=lambda n: (n.node_id not in demand.holding, -free[n.node_id], n.node_id))
    copies: list[Copy] = []
    for node in others:
        if math.isclose(given, peak) or given >= peak:
            break
        held = node.node_id in demand.holding
        if not held and demand.size_bytes > settings.room * free[node.node_id]:
            continue
        if not held:
            free[node.node_id] -= demand.size_bytes
        where = "holds them already" if held else f"has {free[node.node_id]} B of host memory left beside them"
        reason = (
            f"function {demand.function} kept {peak:.3g} devices busy at its peak, the nodes with its weights give it "
            f"{given:.3g}; {node.node_id} {where}"
        )
        copies.append(Copy(demand.version_id, node.node_id, reason))
        given += settings.share * node.devices
    return copies
