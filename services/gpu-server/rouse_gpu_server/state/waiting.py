"""The bounded list of requests that wait for a device, in the order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from rouse_gpu_server.state.records import Lease

# In place of an instance, of those that the device itself answers.
TAPES = "\0tapes"


@dataclass(eq=False)
class Waiter:
    """A request that waits; times in monotonic seconds.

    Args:
        acquire_id: the caller's name for the call; may be empty.
        outcome: its lease, or the error that ends it.
        arrived_at: seconds since 1970, for traces.
        hold_until: when its lease ends by itself.
        instance_id: the only instance that will do; empty: any.
    tape_key: what its tapes have in common (rouse_contracts.tapes.key): the device answers it without an instance;
        empty: an instance has to.
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
    tape_key: str = ""
    swaps_before: int = 0
    tenant: str = ""
    weight: int = 1
    reason: str = ""

    @property
    def by(self) -> str:
        """What will do for it: an instance, TAPES, or empty for any instance."""
        return TAPES if self.tape_key else self.instance_id


class WaitingList:
    """First come, first served within a version among those for which the same will do; tickets order them over all
    versions."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tickets = 0
        self._by_ticket: dict[int, Waiter] = {}
        # By version, then by what will do. Dictionaries keep the order and remove in constant time.
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
        self._by_version.setdefault(waiter.version_id, {}).setdefault(waiter.by, {})[waiter.ticket] = waiter

    def put_back(self, waiter: Waiter) -> None:
        """Returns a waiter whose grant came to nothing to its old place."""
        self.add(waiter)
        same = self._by_version[waiter.version_id]
        same[waiter.by] = dict(sorted(same[waiter.by].items()))

    def remove(self, waiter: Waiter) -> None:
        """Removing what is not there is no error."""
        if self._by_ticket.pop(waiter.ticket, None) is None:
            return
        version = self._by_version[waiter.version_id]
        same = version[waiter.by]
        del same[waiter.ticket]
        if not same:
            del version[waiter.by]
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
        return [w for by, waiters in instances.items() if by not in ("", TAPES) for w in waiters.values()]

    def needing_instances(self, version_id: str) -> list[Waiter]:
        """A version's waiters that an instance has to answer."""
        instances = self._by_version.get(version_id, {})
        return [w for by, waiters in instances.items() if by != TAPES for w in waiters.values()]

    def heads(self, counts: dict[str, int], devices: int) -> list[Waiter]:
        """Of each version its oldest waiters, one more than `counts` says, of those for one instance the oldest, and
        of those that tapes answer one more than there are devices; in the order of tickets."""
        chosen = [
            waiter
            for version, instances in self._by_version.items()
            for by, waiters in instances.items()
            for waiter in islice(waiters.values(), _at_most(by, counts.get(version, 0), devices))
        ]
        return sorted(chosen, key=lambda w: w.ticket)


def _at_most(by: str, instances: int, devices: int) -> int:
    """How many of those who wait for the same can be served at once, and one more."""
    if by == TAPES:
        return devices + 1
    return 1 if by else instances + 1
