"""Shares of tenants: whose request is next, and whose gives way when a queue is full.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): every tenant has a tag, the virtual time at which
its next request begins. The lowest tag goes first; a request moves its tenant's tag on by its cost over the
tenant's weight. Virtual time is the tag of what was served last, and nobody's tag begins before it: who was away
has saved nothing up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_WEIGHT = 1_000_000
# Priorities as clients write them: 1 is the highest, 0 stands for the middle.
HIGHEST, MIDDLE, LOWEST = 1, 5, 9


def level(priority: int) -> int:
    """The place of a priority: HIGHEST to LOWEST."""
    return MIDDLE if priority <= 0 else min(priority, LOWEST)


def begins(tag: float, virtual_time: float) -> float:
    """The tag of a tenant that has something to do again."""
    return max(tag, virtual_time)


def after(tag: float, cost: float, weight: int) -> float:
    """The tag behind a request of that cost."""
    return tag + cost / min(max(weight, 1), MAX_WEIGHT)


@dataclass(frozen=True, slots=True)
class Holding:
    """What a tenant has in a queue: requests that wait, and its weight."""

    waiting: int
    weight: int


@dataclass(frozen=True, slots=True)
class Displacement:
    """Whose newest request leaves a full queue for a newcomer (None: nobody's, the newcomer is refused), and why."""

    tenant: str | None
    reason: str


def displace(holdings: Mapping[str, Holding], newcomer: str, weight: int, capacity: int) -> Displacement:
    """Decides who gives way in a full queue.

    A tenant's share of the queue is its weight over the weights of all that wait there and of the newcomer. The
    newcomer gets in where with it its tenant holds no more than its share; the tenant that is furthest over its
    own gives way.
    """
    weights = {tenant: max(holding.weight, 1) for tenant, holding in holdings.items()}
    weights[newcomer] = max(weight, 1)
    total = sum(weights.values())
    shares = {tenant: capacity * part / total for tenant, part in weights.items()}
    mine = holdings[newcomer].waiting if newcomer in holdings else 0
    # Somebody whose share is less than one request may still have one.
    if mine + 1 > max(shares[newcomer], 1.0):
        return Displacement(None, f"{mine} requests of the tenant wait, its share is {shares[newcomer]:.3g}")
    over = [
        (holding.waiting / weights[tenant], tenant)
        for tenant, holding in holdings.items()
        if tenant != newcomer and holding.waiting > max(shares[tenant], 1.0)
    ]
    if not over:
        return Displacement(None, "nobody has more than its share")
    _, tenant = max(over)
    return Displacement(
        tenant, f"its tenant had {holdings[tenant].waiting} requests waiting, its share is {shares[tenant]:.3g}"
    )


def ahead(holdings: Mapping[str, Holding], newcomer: str, weight: int) -> float:
    """Requests that are served before a newcomer of that tenant, at most: all that wait, and no more than what
    its own tenant's queue and the others' shares meanwhile come to."""
    waiting = sum(holding.waiting for holding in holdings.values())
    mine = holdings[newcomer].waiting if newcomer in holdings else 0
    others: Sequence[Holding] = [holding for tenant, holding in holdings.items() if tenant != newcomer]
    meanwhile = sum(min(h.waiting, (mine + 1) * max(h.weight, 1) / max(weight, 1)) for h in others)
    return min(float(waiting), mine + meanwhile)
