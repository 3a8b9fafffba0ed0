"""Barriers of a job: who has arrived is stored, who waits is here."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from rouse_comm_broker.adapters.channels import JobChannels
from rouse_comm_broker.rules import in_ranges
from rouse_common.errors import DeadlineExceeded, ResourceExhausted
from rouse_contracts.broker import Job

MAX_OPEN = 1024


class Barrier:
    """One barrier. Once complete it stays complete: a name is for one meeting."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._arrived: set[int] = set()
        self._complete = asyncio.Event()
        self.loaded = False
        self.users = 0

    def add(self, ranks: set[int]) -> None:
        self._arrived |= ranks
        if len(self._arrived) >= self._workers:
            self._complete.set()

    @property
    def missing(self) -> set[int]:
        return set(range(self._workers)) - self._arrived

    async def wait(self) -> None:
        await self._complete.wait()


class Barriers:
    """The barriers of one job; those that nobody waits at are read from NATS again when they are needed."""

    def __init__(self, channels: JobChannels, job: Job) -> None:
        self._channels, self._job = channels, job
        self._barriers: OrderedDict[str, Barrier] = OrderedDict()

    async def arrive_and_wait(self, name: str, rank: int, timeout_s: float) -> None:
        """Returns when all workers have arrived at `name`. Arriving again is the same arrival, so a worker
        that was cut off calls again. Raises DeadlineExceeded BARRIER_INCOMPLETE with the missing ranks,
        ResourceExhausted JOB_FULL, Unavailable BUS_DOWN."""
        barrier = self._open(name)
        barrier.users += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self._channels.arrive(self._job, name, rank)
                barrier.add({rank})
                if not barrier.loaded:
                    barrier.add(await self._channels.arrived(self._job, name))
                    barrier.loaded = True
                await barrier.wait()
        except TimeoutError:
            missing = in_ranges(barrier.missing)
            raise DeadlineExceeded(
                "BARRIER_INCOMPLETE",
                f"barrier '{name}' of job '{self._job.job_id}': ranks {missing} have not arrived in {timeout_s:.3g} s",
                job=self._job.job_id, barrier=name, missing=missing,
            ) from None  # fmt: skip
        finally:
            barrier.users -= 1

    def _open(self, name: str) -> Barrier:
        barrier = self._barriers.get(name)
        if barrier is None:
            self._make_room()
            barrier = self._barriers[name] = Barrier(self._job.workers)
        self._barriers.move_to_end(name)
        return barrier

    def _make_room(self) -> None:
        if len(self._barriers) < MAX_OPEN:
            return
        idle = next((name for name, barrier in self._barriers.items() if not barrier.users), None)
        if idle is None:
            text = f"workers of job '{self._job.job_id}' wait at {MAX_OPEN} barriers at once"
            raise ResourceExhausted("TOO_MANY_BARRIERS", text, job=self._job.job_id)
        del self._barriers[idle]
