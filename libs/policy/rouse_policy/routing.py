"""Which node serves a request: where the weights are nearest to computing, weighed by what waits there.

The cost of a node is what stands before a request, counted in waiting requests: those of the node, and
the swap that the weights still need. The node with the lowest cost is taken, and equal nodes in turn.

Requests of a sequence belong together: they go to the node that the sequence's name and the node's make the
highest hash with (rendezvous hashing; Thaler and Ravishankar 1998), so that every gateway finds the same one. A
sequence that is known to be under way on a node goes there and nowhere else, and is lost with the node's instances.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple


@dataclass(frozen=True)
class Candidate:
    """A node with a READY instance of the version.

    Args:
        node_id: the node.
        residency: EXECUTING, DEVICE, SWAPPING_IN, HOST, DISK, ABSENT, or empty where the node did not say.
        queued_requests: requests waiting on the node when it last reported.
    """

    node_id: str
    residency: str
    queued_requests: int


class Snapshot(NamedTuple):
    """What is known when one request is routed.

    Args:
        candidates: nodes with a READY instance of the version.
        in_flight: requests that this gateway has sent to each node and that are not answered yet.
        excluded: nodes that have just turned this very request away.
        sequence: requests of the same name go to the same node; empty: none.
        home: the node that the sequence is under way on; empty where it is not known.
    """

    candidates: tuple[Candidate, ...]
    in_flight: Mapping[str, int] = MappingProxyType({})
    excluded: frozenset[str] = frozenset()
    sequence: str = ""
    home: str = ""


@dataclass(frozen=True)
class Settings:
    """What a swap costs, in requests that one would rather wait behind. Weights of a READY instance whose
    residency is unknown count as in host memory, where staging put them."""

    swapping_in: float = 1.0
    host: float = 4.0
    disk: float = 32.0


@dataclass(frozen=True)
class State:
    """Decisions made so far: equal nodes are taken in turn."""

    turn: int = 0


class Decision(NamedTuple):
    """The node to send to, None where no node is left, and why; `lost` where none will be."""

    node_id: str | None
    reason: str
    lost: bool = False


DEFAULTS = Settings()


def swap_cost(residency: str, settings: Settings) -> float:
    """What stands before a request for weights in this residency, in requests."""
    if residency in ("DEVICE", "EXECUTING"):
        return 0.0
    if residency == "SWAPPING_IN":
        return settings.swapping_in
    if residency in ("DISK", "ABSENT"):
        return settings.disk
    return settings.host


def waiting(candidate: Candidate, snapshot: Snapshot) -> int:
    """Requests before this one on the node. The node's report may be old and this gateway is not its only
    caller, so the larger of both counts is the better guess."""
    return max(candidate.queued_requests, snapshot.in_flight.get(candidate.node_id, 0))


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Names the node for one request. `now` does not matter to it."""
    if snapshot.home:
        return _at_home(snapshot), state
    if snapshot.sequence:
        left = [c.node_id for c in snapshot.candidates if c.node_id not in snapshot.excluded]
        if left:
            home = max(left, key=lambda node_id: (_affinity(snapshot.sequence, node_id), node_id))
            return Decision(home, f"{home} of {len(left)} nodes: the one of its sequence"), state
    best: Candidate | None = None
    best_cost = 0.0
    considered = 0
    total = len(snapshot.candidates)
    for offset in range(total):
        candidate = snapshot.candidates[(state.turn + offset) % total]
        if candidate.node_id in snapshot.excluded:
            continue
        considered += 1
        cost = swap_cost(candidate.residency, settings) + waiting(candidate, snapshot)
        if best is None or cost < best_cost:
            best, best_cost = candidate, cost
    if best is None:
        return Decision(None, f"none of {total} nodes is left, {total} turned the request away"), state
    reason = (
        f"{best.node_id} of {considered} nodes: weights {best.residency or 'UNKNOWN'}, "
        f"{waiting(best, snapshot)} waiting, cost {best_cost:g}"
    )
    return Decision(best.node_id, reason), State(state.turn + 1)


def _at_home(snapshot: Snapshot) -> Decision:
    home = snapshot.home
    if all(candidate.node_id != home for candidate in snapshot.candidates):
        return Decision(None, f"{home}, where it is under way, has no instance any more", lost=True)
    if home in snapshot.excluded:
        return Decision(None, f"{home}, where its sequence is under way, turned the request away")
    return Decision(home, f"{home}, where its sequence is under way")


def _affinity(sequence: str, node_id: str) -> bytes:
    return hashlib.blake2b(f"{node_id}\0{sequence}".encode(), digest_size=8).digest()
