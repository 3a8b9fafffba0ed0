"""What tenants have had of the node's devices, and whose turn it is: rouse_policy.fairness over leases."""

from __future__ import annotations

from collections.abc import Sequence

from rouse_gpu_server.state.waiting import Waiter
from rouse_policy import fairness

# How long a lease lasts, before any has ended; later a smoothed mean.
FIRST_GUESS_S = 0.01
SMOOTHING = 0.1


class Shares:
    """Start-time fair queueing over leases of devices, counted in seconds.

    How long a lease will last is not known when it is granted: its tenant is charged for a typical one then, and
    for the difference when it ends. So who holds many devices at once is behind others at once.
    """

    def __init__(self) -> None:
        self._tags = fairness.Tags()
        self._typical_s = FIRST_GUESS_S

    def order(self, waiters: Sequence[Waiter]) -> Sequence[Waiter]:
        """Waiters, given in the order of arrival, in the order of their turns."""
        if len({waiter.tenant for waiter in waiters}) < 2:
            return waiters
        by_ticket = {waiter.ticket: waiter for waiter in waiters}
        turns = [fairness.Turn(waiter.ticket, waiter.tenant, waiter.weight) for waiter in waiters]
        tags = {turn.tenant: self._tags.of(turn.tenant) for turn in turns}
        return [by_ticket[ticket] for ticket in fairness.order(turns, tags, self._typical_s)]

    def granted(self, tenant: str, weight: int) -> float:
        """The tenant gets a device; the seconds that it is charged for now, to be given to `ended`."""
        begin = self._tags.of(tenant)
        self._tags.served(begin)
        self._tags.keep(tenant, fairness.after(begin, self._typical_s, weight))
        return self._typical_s

    def ended(self, tenant: str, weight: int, charged_s: float, held_s: float) -> None:
        """The tenant gave back a device that it held for so long."""
        self._tags.correct(tenant, fairness.after(0.0, held_s - charged_s, weight))
        self._typical_s += SMOOTHING * (max(held_s, 1e-6) - self._typical_s)

    def clear(self) -> None:
        """Nobody holds or wants a device: nobody is ahead of anybody."""
        self._tags.clear()
