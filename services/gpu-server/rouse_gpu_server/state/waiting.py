"""The bounded list of requests that wait for a device, in the order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from rouse_gpu_server.state.records import Lease


@dataclass(eq=False)
class Waiter:
    """A request that waits; times in monotonic seconds.

    Args:
        acquire_id: the caller's name for the call; may be empty.
        outcome: its lease, or the error that ends it.
        arrived_at: seconds since 1970, for traces.
        swaps_before: swaps of its model that had ended when it came.
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
    swaps_before: int = 0
    reason: str = ""


class WaitingList:
    """First come, first served within a version; tickets order them over all versions."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tickets = 0
        self._by_ticket: dict[int, Waiter] = {}
        # Dictionaries keep the order and remove in constant time.
        self._by_version: dict[str, dict[int, Waiter]] = {}

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
        self._by_version.setdefault(waiter.version_id, {})[waiter.ticket] = waiter

    def put_back(self, waiter: Waiter) -> None:
        """Returns a waiter whose grant came to nothing to its old place."""
        self.add(waiter)
        same = self._by_version[waiter.version_id]
        self._by_version[waiter.version_id] = dict(sorted(same.items()))

    def remove(self, waiter: Waiter) -> None:
        """Removing what is not there is no error."""
        if self._by_ticket.pop(waiter.ticket, None) is None:
            return
        same = self._by_version[waiter.version_id]
        del same[waiter.ticket]
        if not same:
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
        return iter(tuple(self._by_version.get(version_id, {}).values()))

    def heads(self, counts: dict[str, int]) -> list[Waiter]:
        """Of each version its oldest waiters, one more than `counts` says, in the order of tickets."""
        chosen = [
            waiter
            for version, waiters in self._by_version.items()
            for waiter, _ in zip(waiters.values(), range(counts.get(version, 0) + 1), strict=False)
        ]
        return sorted(chosen, key=lambda w: w.ticket)
