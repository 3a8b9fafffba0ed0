"""The bounded list of requests that wait for a device, in the order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from rouse_gpu_server.state.records import Lease


@dataclass(eq=False)
class Waiter:
    """A request that waits; times in monotonic seconds.

    Args:
        acquire_id: the caller's name for the call; may be empty.
        outcome: its lease, or the error that ends it.
        arrived_at: seconds since 1970, for traces.
        hold_until: when its lease ends by itself.
        instance_id: the only instance that will do; empty: any.
        swaps_before: swaps of its model that had ended when it came.
        tenant, weight: whose it is, and its share of contended devices.
        reason: why it was granted what it was granted.
    """

    ticket: int
    version_id: str
    request_id: str
    acquire_id: str
    owner: str
    incarnation: str
    arrived: float
    deadline: float
    arrived_at: float
    outcome: asyncio.Future[Lease]
    hold_until: float
    instance_id: str = ""
    swaps_before: int = 0
    tenant: str = ""
    weight: int = 1
    reason: str = ""


class WaitingList:
    """First come, first served within a version, and for an instance among those that want no other one; tickets
    order them over all versions."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tickets = 0
        self._by_ticket: dict[int, Waiter] = {}
        # By version, then by the only instance that will do. Dictionaries keep the order and remove in constant time.
        self._by_version: dict[str, dict[str, dict[int, Waiter]]] = {}

    def __len__(self) -> int:
        return len(self._by_ticket)

    @property
    def full(self) -> bool:
        return len(self._by_ticket) >= self._limit

    def next_ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def add(self, waiter: Waiter) -> None:
        self._by_ticket[waiter.ticket] = waiter
        self._by_version.setdefault(waiter.version_id, {}).setdefault(waiter.instance_id, {})[waiter.ticket] = waiter

    def put_back(self, waiter: Waiter) -> None:
        """Returns a waiter whose grant came to nothing to its old place."""
        self.add(waiter)
        same = self._by_version[waiter.version_id]
        same[waiter.instance_id] = dict(sorted(same[waiter.instance_id].items()))

    def remove(self, waiter: Waiter) -> None:
        """Removing what is not there is no error."""
        if self._by_ticket.pop(waiter.ticket, None) is None:
            return
        version = self._by_version[waiter.version_id]
        same = version[waiter.instance_id]
        del same[waiter.ticket]
        if not same:
            del version[waiter.instance_id]
        if not version:
            del self._by_version[waiter.version_id]

    def get(self, ticket: int) -> Waiter | None:
        return self._by_ticket.get(ticket)

    def find(self, acquire_id: str) -> Waiter | None:
        """The waiter of a call; linear, for the rare case that a caller gave up."""
        return next((w for w in self._by_ticket.values() if w.acquire_id == acquire_id), None)

    def versions(self) -> list[str]:
        return list(self._by_version)

    def of(self, version_id: str) -> Iterator[Waiter]:
        """A version's waiters, oldest first."""
        found = [w for same in self._by_version.get(version_id, {}).values() for w in same.values()]
        return iter(sorted(found, key=lambda w: w.ticket))

    def bound(self, version_id: str) -> list[Waiter]:
        """A version's waiters for which only one instance will do."""
        instances = self._by_version.get(version_id, {})
        return [waiter for instance, waiters in instances.items() if instance for waiter in waiters.values()]

    def heads(self, counts: dict[str, int]) -> list[Waiter]:
        """Of each version its oldest waiters, one more than `counts` says, and of those for one instance the
        oldest; in the order of tickets."""
        chosen = [
            waiter
            for version, instances in self._by_version.items()
            for instance, waiters in instances.items()
            for waiter in islice(waiters.values(), 1 if instance else counts.get(version, 0) + 1)
        ]
        return sorted(chosen, key=lambda w: w.ticket)
