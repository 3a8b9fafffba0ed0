"""The jobs there are: made, found again after a restart, deleted on request or at the end of their lifetime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from rouse_comm_broker import metrics, rules
from rouse_comm_broker.adapters.channels import Found, JobChannels, job_not_found
from rouse_comm_broker.barriers import Barriers
from rouse_comm_broker.mailbox import Mailbox
from rouse_common.clock import Clock
from rouse_common.errors import ResourceExhausted, RouseError
from rouse_contracts.broker import Job

LOG = logging.getLogger(__name__)
T = TypeVar("T")


class ActiveJob:
    """A job, its mailboxes and barriers. `gone` is set when it is deleted."""

    def __init__(self, channels: JobChannels, found: Found) -> None:
        self._channels = channels
        self.job, self.expires_at = found.job, found.expires_at
        self.barriers = Barriers(channels, found.job)
        self.objects = channels.objects(found.job)
        self.gone = asyncio.Event()
        self._mailboxes: dict[int, Mailbox] = {}

    def mailbox(self, rank: int) -> Mailbox:
        """A worker's mailbox; there are as many as the job has workers."""
        if rank not in self._mailboxes:
            self._mailboxes[rank] = Mailbox(self._channels, self.job.job_id, rank)
        return self._mailboxes[rank]

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for `work`; cancels it when the job is deleted. Raises NotFound JOB_NOT_FOUND then."""
        task, gone = asyncio.create_task(work), asyncio.create_task(self.gone.wait())
        both: set[asyncio.Task[Any]] = {task, gone}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise job_not_found(self.job.job_id)
        finally:
            for each in both:
                each.cancel()
            await asyncio.wait(both)
            if not task.cancelled() and (error := task.exception()) is not None:
                LOG.debug("a call at job=%s ended with error=%r", self.job.job_id, error)

    async def close(self) -> None:
        self.gone.set()
        for mailbox in self._mailboxes.values():
            await mailbox.close()


class Registry:
    """Jobs by id, as NATS has them since the last `load`."""

    def __init__(self, channels: JobChannels, clock: Clock, max_jobs: int) -> None:
        self._channels, self._clock, self._max_jobs = channels, clock, max_jobs
        self._jobs: dict[str, ActiveJob] = {}
        self._making = 0

    async def load(self) -> None:
        """Finds the jobs that NATS holds, at start and whenever it is back. Those known keep their state."""
        await self._channels.prepare()
        found = {item.job.job_id: item for item in await self._channels.find()}
        for job_id in self._jobs.keys() - found.keys():
            await self._jobs.pop(job_id).close()
        for job_id, item in found.items():
            if job_id not in self._jobs:
                self._jobs[job_id] = ActiveJob(self._channels, item)
        metrics.JOBS.set(len(self._jobs))
        LOG.info("found jobs=%d", len(self._jobs))

    async def create(self, job: Job) -> Job:
        """Raises InvalidArgument BAD_JOB, AlreadyExists JOB_EXISTS, ResourceExhausted TOO_MANY_JOBS |
        STORAGE_FULL."""
        full = rules.complete(job)
        if len(self._jobs) + self._making >= self._max_jobs:
            raise ResourceExhausted(
                "TOO_MANY_JOBS", f"there are {self._max_jobs} jobs already; delete some", retry_after_s=5.0
            )
        self._making += 1
        try:
            found = await self._channels.create(full)
        finally:
            self._making -= 1
        self._jobs[full.job_id] = ActiveJob(self._channels, found)
        metrics.JOBS.set(len(self._jobs))
        LOG.info("made job=%s workers=%d", full.job_id, full.workers)
        return found.job

    async def delete(self, job_id: str, reason: str) -> None:
        """Deletes a job wherever it is known; those who wait at it are told that it is gone."""
        rules.check_id(job_id)
        job = self._jobs.pop(job_id, None)
        try:
            if job is not None:
                await job.close()
            await self._channels.delete(job_id)
        except BaseException:
            # Not deleted yet: it is still there to be deleted again, by its owner or by its lifetime.
            if job is not None and job_id not in self._jobs:
                self._jobs[job_id] = ActiveJob(self._channels, Found(job.job, job.expires_at))
            raise
        finally:
            metrics.JOBS.set(len(self._jobs))
        if job is not None:
            LOG.info("deleted job=%s reason=%s", job_id, reason)

    async def expire(self) -> None:
        """Deletes the jobs whose lifetime is over; for a loop to call."""
        now = self._clock.now()
        over = [job_id for job_id, job in self._jobs.items() if job.expires_at <= now]
        failures: list[RouseError] = []
        for job_id in over:
            try:
                await self.delete(job_id, "its lifetime is over")
                metrics.EXPIRED.inc()
            except RouseError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def get(self, job_id: str) -> ActiveJob:
        """Raises NotFound JOB_NOT_FOUND, InvalidArgument BAD_JOB."""
        job = self._jobs.get(rules.check_id(job_id))
        if job is None:
            raise job_not_found(job_id)
        return job

    def list(self) -> list[Job]:
        """Jobs in the order of their ids."""
        return [self._jobs[job_id].job for job_id in sorted(self._jobs)]
