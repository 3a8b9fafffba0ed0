"""The waiting requests of one version: by tenant, by priority, by arrival, and whose turn it is."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from rouse_node_router.tickets import Ticket
from rouse_policy import fairness
from rouse_policy.fairness import Holding, Tags


class Lane:
    """What a tenant has waiting: by priority, then in the order of arrival."""

    __slots__ = ("count", "levels", "tag", "weight")

    def __init__(self, tag: float) -> None:
        self.tag = tag
        self.levels: dict[int, dict[Ticket, None]] = {}
        self.count = 0
        self.weight = 1

    def add(self, ticket: Ticket) -> None:
        level = self.levels.get(ticket.level)
        if level is None:
            level = {}
            self.levels = dict(sorted([*self.levels.items(), (ticket.level, level)]))
        newest = next(reversed(level), None)
        level[ticket] = None
        if newest is not None and newest.arrived > ticket.arrived:
            # It was here before, and gets its old place back.
            self.levels[ticket.level] = dict.fromkeys(sorted(level, key=lambda other: other.arrived))
        self.count += 1
        self.weight = ticket.weight

    def remove(self, ticket: Ticket) -> bool:
        level = self.levels.get(ticket.level)
        if level is None or ticket not in level:
            return False
        del level[ticket]
        if not level:
            del self.levels[ticket.level]
        self.count -= 1
        return True

    def __iter__(self) -> Iterator[Ticket]:
        for level in self.levels.values():
            yield from level

    @property
    def last(self) -> Ticket:
        """The newest of the lowest priority."""
        return next(reversed(self.levels[max(self.levels)]))


class Lanes:
    """All that waits for one version."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}
        self._tags = Tags()
        self._count = 0
        self._rows = 0
        self._alone = 0

    def __len__(self) -> int:
        return self._count

    def add(self, ticket: Ticket) -> None:
        lane = self._lanes.get(ticket.tenant)
        if lane is None:
            lane = self._lanes[ticket.tenant] = Lane(self._tags.of(ticket.tenant))
        lane.add(ticket)
        self._add(ticket, 1)

    def remove(self, ticket: Ticket) -> None:
        """Takes a request out; one that is not there is no error."""
        lane = self._lanes.get(ticket.tenant)
        if lane is None or not lane.remove(ticket):
            return
        self._add(ticket, -1)
        if not lane.count:
            del self._lanes[ticket.tenant]
            self._tags.keep(ticket.tenant, lane.tag)
        if not self._count:
            self._tags.clear()

    def charge(self, ticket: Ticket) -> None:
        """A request that is here goes to a device; one that comes back was charged for already."""
        if ticket.charged:
            return
        lane = self._lanes[ticket.tenant]
        self._tags.served(lane.tag)
        lane.tag = fairness.after(lane.tag, ticket.rows, ticket.weight)
        ticket.charged = True

    def groups(self, max_rows: int) -> int:
        """Executions that what waits needs at least."""
        return self._alone + -(-self._rows // max(max_rows, 1))

    def full_groups(self, max_rows: int) -> int:
        """Of these, those that nobody else could join."""
        return self._alone + self._rows // max(max_rows, 1)

    def last(self, tenant: str) -> Ticket:
        """The newest request of the tenant's lowest priority. Raises KeyError."""
        return self._lanes[tenant].last

    def holdings(self) -> Mapping[str, Holding]:
        return {tenant: Holding(lane.count, lane.weight) for tenant, lane in self._lanes.items()}

    def __iter__(self) -> Iterator[Ticket]:
        """The requests in the order in which they would go if nobody came. Nothing may change meanwhile."""
        if len(self._lanes) == 1:
            yield from next(iter(self._lanes.values()))
            return
        turns = [(lane.tag, tenant, iter(lane)) for tenant, lane in self._lanes.items()]
        heapq.heapify(turns)
        while turns:
            tag, tenant, lane = turns[0]
            ticket = next(lane, None)
            if ticket is None:
                heapq.heappop(turns)
                continue
            heapq.heapreplace(turns, (fairness.after(tag, ticket.rows, ticket.weight), tenant, lane))
            yield ticket

    def _add(self, ticket: Ticket, sign: int) -> None:
        self._count += sign
        if ticket.batchable:
            self._rows += sign * ticket.rows
        else:
            self._alone += sign
