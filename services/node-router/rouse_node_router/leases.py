"""Leases that are used again: the next request of a version takes over the lease of the one before it, as long as
nobody else waits for a device. That is what gpu-server would decide, and spares asking it.

A lease belongs to a version; one under which only tapes answer, to its requests of one kind. Requests wait for one in
the order in which they came, and there is an ask at gpu-server for each of them, always; whatever becomes free, granted
or taken over, goes to the first whose deadline it outlasts. A lease is used for so long, then it goes back, so that
gpu-server has the last word. One that nobody takes rests for a moment before it goes back. Nothing here does I/O.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rouse_common.clock import Clock
from rouse_common.errors import DeadlineExceeded
from rouse_common.expiring import expiring
from rouse_node_router.adapters.devices import Devices, Lease

# Longer than a client needs to send its next request after an answer.
REST_S = 0.01
# The device of a function without weights: no other function waits for it.
HOST = "host"


# Of a line: a version, and what its requests have in common that the same tapes answer; empty where instances do.
_Name: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class _Use:
    """What a lease was used for so far, until when it may be taken over, and since when it rests where it does; in
    monotonic seconds."""

    reuse_until: float
    rests_since: float = 0.0
    device_ms: float = 0.0
    requests: int = 0
    replays: int = 0

    def count(self, device_ms: float, *, replayed: bool) -> None:
        """One more request was executed."""
        self.device_ms += device_ms
        self.requests += 1
        self.replays += replayed


@dataclass(eq=False, slots=True)
class _Waiter:
    """Who waits for a lease until `deadline`, and would hold it until `hold_until`; monotonic seconds."""

    request_id: str
    tenant: str
    weight: int
    deadline: float
    hold_until: float
    lease: asyncio.Future[Lease]


@dataclass(eq=False, slots=True)
class _Line:
    """One version, or its requests of one kind that tapes are to answer: who waits for a lease and how many did at most
    since it was tidied, the asks at gpu-server, the leases that rest."""

    version_id: str
    tape_key: str = ""
    waiting: dict[_Waiter, None] = field(default_factory=dict)
    peak: int = 0
    asks: dict[asyncio.Task[None], None] = field(default_factory=dict)
    resting: list[Lease] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> _Name:
        return self.version_id, self.tape_key

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.asks or self.resting)


class Leases:
    """Takes leases and gives them back; its asks run in the given group.

    Args:
        reuse_s: how long after it was granted a lease may be taken over; 0: every request has one of its own.
    """

    def __init__(self, devices: Devices, tasks: asyncio.TaskGroup, clock: Clock, reuse_s: float) -> None:
        self._devices, self._tasks, self._clock, self._reuse_s = devices, tasks, clock, reuse_s
        self._lines: dict[_Name, _Line] = {}
        self._uses: dict[str, _Use] = {}
        self._waiting = 0
        # Asks for one certain instance, which take part in nothing here but must be let through.
        self._picky = 0

    async def acquire(
        self,
        version_id: str,
        request_id: str,
        timeout_s: float,
        hold_s: float,
        instance_id: str = "",
        tenant: str = "",
        weight: int = 1,
        tape_key: str = "",
    ) -> Lease:
        """As Devices.acquire; a lease that was taken over had nothing swapped in for it."""
        now, picky = self._clock.monotonic(), bool(instance_id)
        if not picky and (rested := self.take(version_id, now + timeout_s, tape_key)) is not None:
            return rested
        name = version_id, tape_key
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(*name)
        self._make_way(line, picky=picky)
        if picky or not self._reuse_s:
            return await self._own(line, request_id, timeout_s, hold_s, instance_id, tenant, weight)
        granted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(request_id, tenant, weight, now + timeout_s, now + hold_s, granted)
        line.waiting[waiter] = None
        line.peak = max(line.peak, len(line.waiting))
        self._waiting += 1
        self._balance(line)
        taken = False
        try:
            with expiring(waiter.lease, timeout_s):
                lease = await waiter.lease
            taken = True
            return lease
        except TimeoutError:
            raise DeadlineExceeded("DEADLINE_EXCEEDED", "no device became free within the deadline") from None
        finally:
            self._drop(line, waiter)
            future = waiter.lease
            if not taken and not future.cancelled() and future.done() and future.exception() is None:
                self._pass_on(line, future.result())
            self._tidy_later(line)

    def take(self, version_id: str, deadline: float, tape_key: str = "") -> Lease | None:
        """A lease of the version that rests and outlasts the deadline (monotonic seconds), with the key of tapes one
        under which those answer; None where there is none."""
        line = self._lines.get((version_id, tape_key))
        if line is None or not line.resting:
            return None
        self._make_way(line, picky=False)
        while line.resting:
            lease = line.resting.pop()
            if self._may_go_on(line, lease) and deadline <= lease.until:
                return lease
            self._return(lease)
        return None

    def release(self, lease: Lease, device_ms: float, *, abandoned: bool, again: bool, replayed: bool = False) -> None:
        """As Devices.release.

        Args:
            again: whether the executor takes further requests under the lease, as far as we know.
            replayed: whether a tape answered, and no instance.
        """
        use, line = self._uses.get(lease.lease_id), None
        if use is not None:
            use.count(device_ms, replayed=replayed)
            line = self._lines.get((lease.version_id, lease.tape_key))
        if use is None:
            self._devices.release(lease, device_ms, abandoned=abandoned, replays=int(replayed))
        elif abandoned or not again or line is None or not self._may_go_on(line, lease):
            self._return(lease, abandoned=abandoned)
        else:
            self._pass_on(line, _as_it_was(lease))

    def go_on(self, lease: Lease, device_ms: float, *, replayed: bool) -> Lease | None:
        """In place of `release`, the lease for the next request of its version; None where it may not be taken over,
        and is to be released. Who finds nobody for it after all lets it `rest`."""
        use, line = self._uses.get(lease.lease_id), self._lines.get((lease.version_id, lease.tape_key))
        if use is None or line is None or not self._may_go_on(line, lease):
            return None
        use.count(device_ms, replayed=replayed)
        return _as_it_was(lease)

    def rest(self, lease: Lease) -> None:
        """Takes a lease back from `go_on` or `take` that nobody used."""
        name = lease.version_id, lease.tape_key
        self._pass_on(self._lines.get(name) or _Line(*name), lease)

    async def released(self, timeout_s: float) -> None:
        """Gives back what rests and waits until all is given back, `timeout_s` seconds at most."""
        for line in list(self._lines.values()):
            self._tidy(line, at_once=True)
        await self._devices.released(timeout_s)

    # ---- Between requests ----------------------------------------------------------------------

    async def _own(
        self,
        line: _Line,
        request_id: str,
        timeout_s: float,
        hold_s: float,
        instance_id: str,
        tenant: str,
        weight: int,
    ) -> Lease:
        """A lease that is nobody else's, before and after."""
        self._picky += 1
        until = self._clock.monotonic() + hold_s
        try:
            lease = await self._devices.acquire(
                line.version_id, request_id, timeout_s, hold_s, instance_id, tenant, weight, line.tape_key
            )
            return replace(lease, until=until)
        finally:
            self._picky -= 1
            self._tidy_later(line)

    def _balance(self, line: _Line) -> None:
        """Makes sure of an ask for everybody who waits; the asks that there are stand for those in front."""
        missing = list(line.waiting)[len(line.asks) :] if len(line.asks) < len(line.waiting) else ()
        for waiter in missing:
            line.asks[self._tasks.create_task(self._ask(line, waiter))] = None

    async def _ask(self, line: _Line, waiter: _Waiter) -> None:
        task = asyncio.current_task()
        assert task is not None
        now = self._clock.monotonic()
        timeout_s, hold_s = max(0.0, waiter.deadline - now), waiter.hold_until - now
        try:
            lease = await self._devices.acquire(
                line.version_id, waiter.request_id, timeout_s, hold_s, "", waiter.tenant, waiter.weight, line.tape_key
            )
        except asyncio.CancelledError:
            # By who asks no more than wait, or at the end of everything.
            line.asks.pop(task, None)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits is told, and says so
            line.asks.pop(task, None)
            self._fail_first(line, error)
        else:
            line.asks.pop(task, None)
            until = now + hold_s
            self._uses[lease.lease_id] = _Use(self._clock.monotonic() + self._reuse_s)
            self._pass_on(line, replace(lease, until=until))
        self._balance(line)
        self._tidy_later(line)

    def _fail_first(self, line: _Line, error: Exception) -> None:
        """Tells who waits longest. Of a deadline nobody is told: whose it is knows it, others may have more time."""
        if isinstance(error, DeadlineExceeded):
            return
        for waiter in line.waiting:
            if not waiter.lease.done():
                waiter.lease.set_exception(error)
                self._drop(line, waiter)
                return

    def _pass_on(self, line: _Line, lease: Lease) -> None:
        """Gives a lease to whoever waits longest of those who can use it; where nobody does, it rests."""
        # The line may have been dropped as idle while the lease was on its way to somebody who is gone.
        line = self._lines.setdefault(line.name, line)
        for waiter in line.waiting:
            if not waiter.lease.done() and waiter.deadline <= lease.until:
                waiter.lease.set_result(lease)
                self._drop(line, waiter)
                break
        else:
            self._uses[lease.lease_id].rests_since = self._clock.monotonic()
            line.resting.append(lease)
        self._tidy_later(line)

    def _may_go_on(self, line: _Line, lease: Lease) -> bool:
        """Whether another request may be executed under the lease without asking gpu-server."""
        if self._picky or self._clock.monotonic() > self._uses[lease.lease_id].reuse_until:
            return False
        return lease.device == HOST or self._waiting == len(line.waiting)

    def _make_way(self, line: _Line, *, picky: bool) -> None:
        """What rests on devices goes back before another version, or a request with an instance of its own, asks."""
        for other in list(self._lines.values()) if self._uses else ():
            if other is line and not picky:
                continue
            stays = [lease for lease in other.resting if lease.device == HOST and not picky]
            for lease in other.resting:
                if lease not in stays:
                    self._return(lease)
            other.resting = stays

    def _return(self, lease: Lease, *, abandoned: bool = False) -> None:
        use = self._uses.pop(lease.lease_id)
        self._devices.release(
            lease, use.device_ms, abandoned=abandoned, requests=max(1, use.requests), replays=use.replays
        )  # fmt: skip

    def _drop(self, line: _Line, waiter: _Waiter) -> None:
        if waiter in line.waiting:
            del line.waiting[waiter]
            self._waiting -= 1

    # ---- What is left over ---------------------------------------------------------------------

    def _tidy_later(self, line: _Line) -> None:
        if line.timer is None and (line.resting or len(line.asks) > len(line.waiting) or line.idle):
            line.timer = asyncio.get_running_loop().call_later(REST_S, self._tidy, line)

    def _tidy(self, line: _Line, *, at_once: bool = False) -> None:
        """Gives back what nobody took for as long as it may rest, and asks no more than wait.

        Args:
            at_once: nothing is kept that nobody waits for now.
        """
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        rested = self._clock.monotonic() - REST_S
        stays = [lease for lease in line.resting if not at_once and self._uses[lease.lease_id].rests_since > rested]
        for lease in line.resting:
            if lease not in stays:
                self._return(lease)
        line.resting = stays
        # As many as waited at once since the last time: under steady load who waits changes with every request, and to
        # take an ask back for a moment, only to ask again, would cost more than all the rest.
        for ask in list(line.asks)[len(line.waiting) if at_once else line.peak :]:
            # Whoever comes before it has ended needs one that is not about to end.
            del line.asks[ask]
            ask.cancel()
        line.peak = len(line.waiting)
        if line.idle and self._lines.get(line.name) is line:
            del self._lines[line.name]
        else:
            self._tidy_later(line)


def _as_it_was(lease: Lease) -> Lease:
    """For a request that nothing was swapped in for."""
    return replace(lease, swap_ms=0.0, swapped_in=False) if lease.swapped_in or lease.swap_ms else lease
