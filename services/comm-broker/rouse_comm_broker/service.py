"""rouse.broker.v1.BrokerService: thin handlers."""

from __future__ import annotations

import time
from collections.abc import Callable

from grpc.aio import ServicerContext

from rouse_comm_broker import metrics, rules
from rouse_comm_broker.adapters.channels import JobChannels, job_full, job_not_found
from rouse_comm_broker.registry import Registry
from rouse_common.errors import NotFound, ResourceExhausted, Unavailable
from rouse_common.locks import KeyedLocks
from rouse_common.rpc import remaining_s
from rouse_contracts import broker
from rouse_contracts.broker import BrokerServiceServicer

register = broker.add_BrokerServiceServicer_to_server
# For a barrier whose caller set no deadline.
BARRIER_TIMEOUT_S = 300.0
# The answer that names who is missing must arrive before the caller gives up.
ANSWER_MARGIN_S = 0.25
MESSAGE_MARGIN_BYTES = 1 << 16


class BrokerService(BrokerServiceServicer):
    """Answers UNAVAILABLE BUS_DOWN while `loaded` says that the registry is not true to NATS."""

    def __init__(
        self, registry: Registry, channels: JobChannels, loaded: Callable[[], bool], max_message_bytes: int
    ) -> None:
        self._registry, self._channels, self._loaded = registry, channels, loaded
        self._max_bytes = max_message_bytes - MESSAGE_MARGIN_BYTES
        self._objects = KeyedLocks()

    def _require_loaded(self) -> None:
        if not self._loaded():
            raise Unavailable("BUS_DOWN", "comm-broker waits for NATS; try again shortly", retry_after_s=1.0)

    async def CreateJob(self, request: broker.CreateJobRequest, context: ServicerContext) -> broker.CreateJobResponse:
        self._require_loaded()
        return broker.CreateJobResponse(job=await self._registry.create(request.job))

    async def DeleteJob(self, request: broker.DeleteJobRequest, context: ServicerContext) -> broker.DeleteJobResponse:
        self._require_loaded()
        await self._registry.delete(request.job_id, "asked to")
        return broker.DeleteJobResponse()

    async def ListJobs(self, request: broker.ListJobsRequest, context: ServicerContext) -> broker.ListJobsResponse:
        self._require_loaded()
        return broker.ListJobsResponse(jobs=self._registry.list())

    async def Send(self, request: broker.SendRequest, context: ServicerContext) -> broker.SendResponse:
        self._require_loaded()
        job = self._registry.get(request.job_id).job
        rules.check_rank(job, request.target, "target")
        rules.check_message(job, request.message, min(self._channels.max_message_bytes, self._max_bytes))
        sequence = await self._channels.send(job, request.target, request.message)
        metrics.SENT.inc()
        metrics.SENT_BYTES.inc(len(request.message.payload))
        return broker.SendResponse(sequence=sequence)

    async def Receive(self, request: broker.ReceiveRequest, context: ServicerContext) -> broker.ReceiveResponse:
        self._require_loaded()
        active = self._registry.get(request.job_id)
        rules.check_rank(active.job, request.rank, "rank")
        limit = min(request.max_messages or rules.DEFAULT_MESSAGES, rules.MAX_MESSAGES)
        asked_s = request.wait.seconds + request.wait.nanos / 1e9 if request.HasField("wait") else rules.DEFAULT_WAIT_S
        wait_s = min(max(0.0, asked_s), rules.MAX_WAIT_S, _before_deadline(context, rules.MAX_WAIT_S))
        work = active.mailbox(request.rank).receive(limit, wait_s, self._max_bytes)
        messages = await active.unless_gone(work)
        metrics.RECEIVED.inc(len(messages))
        return broker.ReceiveResponse(messages=messages)

    async def PutObject(self, request: broker.PutObjectRequest, context: ServicerContext) -> broker.PutObjectResponse:
        self._require_loaded()
        active, key = self._registry.get(request.job_id), rules.check_key(request.key)
        async with self._objects.holding(f"{request.job_id}/{key}"):
            try:
                await active.objects.put(key, request.data)
            except NotFound:
                raise job_not_found(request.job_id) from None
            except ResourceExhausted as error:
                if error.reason != "BUCKET_FULL":
                    raise
                why = f"its objects may hold {active.job.object_limit_bytes} bytes"
                raise job_full(active.job, why) from None
        metrics.OBJECT_BYTES.labels("put").inc(len(request.data))
        return broker.PutObjectResponse()

    async def GetObject(self, request: broker.GetObjectRequest, context: ServicerContext) -> broker.GetObjectResponse:
        self._require_loaded()
        active, key = self._registry.get(request.job_id), rules.check_key(request.key)
        try:
            data = await active.objects.get(key, limit=self._max_bytes)
        except NotFound as error:
            if error.reason == "OBJECT_NOT_FOUND":
                text = f"job '{request.job_id}' has no object '{key}'"
                raise NotFound("OBJECT_NOT_FOUND", text, job=request.job_id, key=key) from None
            raise job_not_found(request.job_id) from None
        metrics.OBJECT_BYTES.labels("get").inc(len(data))
        return broker.GetObjectResponse(data=data)

    async def AwaitBarrier(
        self, request: broker.AwaitBarrierRequest, context: ServicerContext
    ) -> broker.AwaitBarrierResponse:
        self._require_loaded()
        active, name = self._registry.get(request.job_id), rules.check_barrier(request.name)
        rules.check_rank(active.job, request.rank, "rank")
        timeout_s = _before_deadline(context, BARRIER_TIMEOUT_S)
        begun = time.perf_counter()
        await active.unless_gone(active.barriers.arrive_and_wait(name, request.rank, timeout_s))
        waited_s = time.perf_counter() - begun
        metrics.BARRIER_WAIT.observe(waited_s)
        return broker.AwaitBarrierResponse(waited_ms=waited_s * 1000)

    async def CheckChannel(
        self, request: broker.CheckChannelRequest, context: ServicerContext
    ) -> broker.CheckChannelResponse:
        self._require_loaded()
        round_trip_s = await self._channels.round_trip_s()
        metrics.ROUND_TRIP.set(round_trip_s)
        usage = await self._channels.usage()
        return broker.CheckChannelResponse(
            round_trip_ms=round_trip_s * 1000, stored_bytes=usage.stored_bytes, streams=usage.streams
        )


def _before_deadline(context: ServicerContext, default_s: float) -> float:
    """Seconds until the answer must leave for the caller to get it."""
    left = remaining_s(context, default_s + ANSWER_MARGIN_S)
    return max(0.0, left - min(ANSWER_MARGIN_S, left * 0.2))
