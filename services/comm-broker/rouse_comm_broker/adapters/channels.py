"""The channels of jobs in JetStream: a stream, a bucket, and arrivals at barriers.

FSD-Inference, section III, with a subject a worker in the place of a queue a worker, and a bucket a job in the
place of object storage; made before the workers start, as there.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass

from rouse_bus import Bus, subjects
from rouse_bus.consumers import Consumer
from rouse_bus.objects import ObjectStore
from rouse_bus.streams import Retention, Streams, StreamSettings, StreamState
from rouse_comm_broker.rules import DEFAULT_OBJECT_BYTES, DEFAULT_QUEUE_BYTES
from rouse_common.errors import AlreadyExists, NotFound, ResourceExhausted, RouseError
from rouse_contracts.broker import Job, Message

JOB_PREFIX, BUCKET_PREFIX, STORE_PREFIX = "JOB_", "job_", "OBJ_job_"
BARRIERS = "JOBS_BARRIERS"
PROBE, PROBE_SUBJECT = "JOBS_PROBE", "rouse.job-probe"
MAX_BARRIERS_BYTES = 64 << 20
MAX_BARRIER_AGE_S = 8 * 86_400.0
MAX_PROBE_BYTES = 1 << 20
PROBE_WAIT_S = 5.0
# Room in a message for its headers.
HEADER_BYTES = 1024


@dataclass(frozen=True)
class Found:
    """A job that NATS holds; `expires_at` in seconds since 1970."""

    job: Job
    expires_at: float


@dataclass(frozen=True)
class Usage:
    """What all jobs take in NATS."""

    stored_bytes: int
    streams: int


class JobChannels:
    """Makes and deletes channels. Every method raises Unavailable BUS_DOWN while NATS is away."""

    def __init__(self, bus: Bus) -> None:
        self._bus, self._streams = bus, Streams(bus)
        self._probing = asyncio.Lock()
        self._probe: Consumer | None = None

    @property
    def max_message_bytes(self) -> int:
        """Bytes of the largest message that a queue takes."""
        return self._bus.max_payload - HEADER_BYTES

    async def prepare(self) -> None:
        """Makes what all jobs share."""
        await self._streams.ensure(
            StreamSettings(
                BARRIERS, (subjects.all_arrivals(),), max_bytes=MAX_BARRIERS_BYTES, max_age_s=MAX_BARRIER_AGE_S,
                max_per_subject=1,
            )
        )  # fmt: skip
        await self._streams.ensure(
            StreamSettings(
                PROBE, (PROBE_SUBJECT,), max_bytes=MAX_PROBE_BYTES, max_age_s=60, in_memory=True,
                retention=Retention.WORK_QUEUE,
            )
        )  # fmt: skip

    async def find(self) -> list[Found]:
        """The jobs that NATS holds. Deletes buckets whose job is gone."""
        states = {state.name: state for state in await self._streams.list()}
        found = [_found(state) for name, state in states.items() if name.startswith(JOB_PREFIX)]
        known = {item.job.job_id for item in found}
        for name in states:
            job_id = name.removeprefix(STORE_PREFIX)
            if name.startswith(STORE_PREFIX) and job_id not in known:
                await self._streams.delete(name)
        return found

    async def create(self, job: Job) -> Found:
        """Raises AlreadyExists JOB_EXISTS, ResourceExhausted STORAGE_FULL."""
        lifetime_s = job.lifetime.seconds + job.lifetime.nanos / 1e9
        metadata = {
            "workers": str(job.workers),
            "object_limit_bytes": str(job.object_limit_bytes),
            "lifetime_s": repr(lifetime_s),
            # Makes two jobs of one id differ: NATS accepts a stream again that is the very same.
            "made": secrets.token_hex(8),
        }
        settings = StreamSettings(
            JOB_PREFIX + job.job_id,
            (subjects.queues(job.job_id),),
            max_bytes=job.queue_limit_bytes,
            retention=Retention.WORK_QUEUE,
            metadata=metadata,
        )
        try:
            state = await self._streams.create(settings)
        except AlreadyExists:
            raise AlreadyExists(
                "JOB_EXISTS", f"there is a job '{job.job_id}' already; delete it, or take another id", job=job.job_id
            ) from None
        try:
            await self._streams.purge(BARRIERS, subjects.all_arrivals(job.job_id))
            await self.objects(job).ensure()
        except RouseError:
            await self._streams.delete(settings.name)
            raise
        return _found(state)

    async def delete(self, job_id: str) -> None:
        """Gives back everything a job stored; its stream last, so that it is found again where this fails."""
        await self._streams.delete(STORE_PREFIX + job_id)
        await self._streams.purge(BARRIERS, subjects.all_arrivals(job_id))
        await self._streams.delete(JOB_PREFIX + job_id)

    async def send(self, job: Job, target: int, message: Message) -> int:
        """Stores a message in a worker's queue; returns its sequence. Raises NotFound JOB_NOT_FOUND,
        ResourceExhausted JOB_FULL | STORAGE_FULL."""
        try:
            return await self._streams.publish(subjects.queue(job.job_id, target), message.SerializeToString())
        except NotFound:
            raise job_not_found(job.job_id) from None
        except ResourceExhausted as error:
            if error.reason == "STREAM_FULL":
                raise job_full(job, f"its queues hold {job.queue_limit_bytes} bytes; receive some first") from None
            raise

    def queue(self, job_id: str, rank: int) -> Consumer:
        """A worker's queue, to be opened."""
        return Consumer(self._bus, JOB_PREFIX + job_id, subjects.queue(job_id, rank), f"rank-{rank}")

    def objects(self, job: Job) -> ObjectStore:
        """A job's bucket."""
        return ObjectStore(self._bus, BUCKET_PREFIX + job.job_id, max_bytes=job.object_limit_bytes)

    async def arrive(self, job: Job, barrier: str, rank: int) -> None:
        """Stores that a worker has arrived. Raises ResourceExhausted JOB_FULL."""
        try:
            await self._streams.publish(subjects.arrival(job.job_id, barrier, rank), b"")
        except ResourceExhausted:
            raise job_full(job, "all jobs together have too many barriers; delete jobs that are done") from None

    async def arrived(self, job: Job, barrier: str) -> set[int]:
        """The ranks that have arrived at a barrier."""
        found = await self._streams.subjects(BARRIERS, subjects.arrivals(job.job_id, barrier))
        return {int(subject.rpartition(".")[2]) for subject in found}

    async def usage(self) -> Usage:
        """What is stored now."""
        states = [s for s in await self._streams.list() if s.name.startswith((JOB_PREFIX, STORE_PREFIX))]
        return Usage(sum(state.bytes for state in states), len(states))

    async def round_trip_s(self) -> float:
        """Time from sending a message until it is stored, taken out and here, in seconds."""
        async with self._probing:
            probe, self._probe = self._probe, None  # not used again where this fails
            if probe is None or not probe.alive:
                probe = await Consumer(self._bus, PROBE, PROBE_SUBJECT, "probe").open()
            mark = secrets.token_bytes(16)
            begun = time.perf_counter()
            await self._streams.publish(PROBE_SUBJECT, mark)
            while True:
                messages = await probe.take(16, PROBE_WAIT_S)
                took = time.perf_counter() - begun
                await probe.acknowledge(messages)
                if not messages:
                    raise NotFound("PROBE_LOST", "the message that measures the channel did not come back")
                if messages[-1].data == mark:
                    self._probe = probe
                    return took


def _found(state: StreamState) -> Found:
    metadata = state.metadata
    job = Job(
        job_id=state.name.removeprefix(JOB_PREFIX),
        workers=int(metadata.get("workers", 1)),
        queue_limit_bytes=state.max_bytes or DEFAULT_QUEUE_BYTES,
        object_limit_bytes=int(metadata.get("object_limit_bytes", DEFAULT_OBJECT_BYTES)),
    )
    lifetime_s = float(metadata.get("lifetime_s", 0))
    job.lifetime.FromNanoseconds(int(lifetime_s * 1e9))
    return Found(job, state.created + lifetime_s)


def job_not_found(job_id: str) -> NotFound:
    return NotFound("JOB_NOT_FOUND", f"there is no job '{job_id}'; its lifetime may be over", job=job_id)


def job_full(job: Job, why: str) -> ResourceExhausted:
    return ResourceExhausted("JOB_FULL", f"job '{job.job_id}' is full: {why}", retry_after_s=0.5, job=job.job_id)
