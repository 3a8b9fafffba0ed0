"""Shares of tenants: whose request is next, and whose gives way when a queue is full.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): every tenant has a tag, the virtual time at which
its next request begins. The lowest tag goes first; a request moves its tenant's tag on by its cost over the
tenant's weight. Virtual time is the tag of what was served last, and nobody's tag begins before it: who was away
has saved nothing up.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_WEIGHT = 1_000_000
# Tenants that are remembered though they have nothing here; past it those with the smallest lead are forgotten.
MAX_TAGS = 10_000
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


class Tags:
    """Virtual time, and the tags of tenants: the memory of who applies this policy."""

    def __init__(self) -> None:
        self._time = 0.0
        self._tags: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._tags)

    def of(self, tenant: str) -> float:
        """Where the tenant's next request begins if it has had nothing to do until now."""
        return begins(self._tags.get(tenant, 0.0), self._time)

    def keep(self, tenant: str, tag: float) -> None:
        """The tenant has nothing to do for now."""
        self._tags[tenant] = tag
        if len(self._tags) > MAX_TAGS:
            leading = {name: tag for name, tag in self._tags.items() if tag > self._time}
            self._tags = dict(heapq.nlargest(MAX_TAGS // 2, leading.items(), key=lambda item: item[1]))

    def correct(self, tenant: str, by: float) -> None:
        """What the tenant was charged turned out to be so much too little; nothing where it is forgotten."""
        if tenant in self._tags:
            self._tags[tenant] += by

    def served(self, tag: float) -> None:
        """A request with that tag was served."""
        self._time = max(self._time, tag)

    def clear(self) -> None:
        self._time, self._tags = 0.0, {}


@dataclass(frozen=True, slots=True)
class Turn:
    """A request that waits: its ticket, which counts up in the order of arrival, and its tenant with its weight."""

    ticket: int
    tenant: str
    weight: int


def order(turns: Iterable[Turn], tags: Mapping[str, float], cost: float) -> list[int]:
    """Tickets in the order in which the requests go, if each costs the same and nobody else comes.

    Args:
        tags: of every tenant that has a turn.
        cost: of one request, in the unit of the tags; above 0.
    """
    lanes: dict[str, list[Turn]] = {}
    for turn in sorted(turns, key=lambda t: t.ticket):
        lanes.setdefault(turn.tenant, []).append(turn)
    # Where tags are equal, who came first goes first.
    heap = [(tags[tenant], lane[0].ticket, 0, tenant) for tenant, lane in lanes.items()]
    heapq.heapify(heap)
    found: list[int] = []
    while heap:
        tag, ticket, place, tenant = heap[0]
        found.append(ticket)
        lane = lanes[tenant]
        if place + 1 < len(lane):
            tag = after(tag, cost, lane[place].weight)
            heapq.heapreplace(heap, (tag, lane[place + 1].ticket, place + 1, tenant))
        else:
            heapq.heappop(heap)
    return found


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
