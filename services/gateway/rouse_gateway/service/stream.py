"""One call of ModelStreamInfer: many requests on one stream, served at once, their failures in band."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from opentelemetry.trace import SpanKind

from rouse_common import telemetry
from rouse_common.clock import Clock
from rouse_common.errors import ResourceExhausted, RouseError, Unavailable
from rouse_gateway import protocol
from rouse_gateway.oip.inferences import Inferences
from rouse_gateway.oip.requests import Caller, Request

LOG = logging.getLogger(__name__)

# Requests of one stream at work at once; while there are so many nothing more is read from the client.
MAX_CONCURRENT = 64
# Responses that wait for the client to read.
MAX_WAITING = 16
# How long a client may read nothing while a response waits for it.
STALL_S = 60.0


@dataclass(frozen=True)
class StreamSettings:
    """How a stream is served.

    Args:
        caller: whose stream it is; its time is the stream's.
        parent: the trace that the client has the stream belong to.
        strict: whether the first failure ends the stream, with its status (Triton's header triton_grpc_error).
        default_timeout_s: time for a request that sets none, in a stream without a deadline.
    """

    caller: Caller
    parent: telemetry.Parent
    strict: bool
    default_timeout_s: float


@dataclass
class _Turn:
    """What a request waits for and what waits for it.

    Args:
        before: the request before it in its sequence has ended.
        ended: it has ended itself.
        answered_before: the request before it is answered; None where the order of answers is free.
        answered: it is answered itself.
    """

    before: asyncio.Event | None
    ended: asyncio.Event
    answered_before: asyncio.Event | None
    answered: asyncio.Event


class Stream:
    """Serves one stream.

    Requests are served at the same time, those of one sequence one after the other. Functions that are not
    decoupled answer in the order of the requests, as clients of the protocol expect; responses of decoupled
    functions go out as they come.

    Args:
        read: the request that a serialised message is. Raises InvalidArgument.
        stopping: set when the gateway stops: what was read is answered, then the stream ends as UNAVAILABLE.
    """

    def __init__(
        self,
        inferences: Inferences,
        read: Callable[[bytes], Awaitable[Request]],
        clock: Clock,
        stopping: asyncio.Event,
        settings: StreamSettings,
    ) -> None:
        self._inferences = inferences
        self._read = read
        self._clock = clock
        self._stopping = stopping
        self._settings = settings
        left_s = settings.caller.time_left_s
        self._deadline = None if left_s is None else clock.monotonic() + left_s
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_WAITING)
        self._sequences: dict[tuple[str, str], asyncio.Event] = {}
        self._last_answered: asyncio.Event | None = None
        self._failure: RouseError | None = None
        self._closed = False
        self._reader: asyncio.Task[object] | None = None

    async def serve(self, messages: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """The responses, serialised, until the client has sent everything and has every answer. Raises Unavailable
        where the gateway stops; closing it ends what is at work."""
        self._reader = asyncio.current_task()
        work = asyncio.ensure_future(self._work(messages))
        try:
            while (response := await self._out.get()) is not None:
                yield response
            await work
            if self._failure is not None:
                raise self._failure
        finally:
            self._closed = True
            work.cancel()
            await asyncio.wait([work])

    async def _work(self, messages: AsyncIterator[bytes]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._read_all(messages, tasks))
                watching = tasks.create_task(self._end_with_gateway(reading))
                reading.add_done_callback(lambda _: watching.cancel())
        except* _Ended:
            LOG.info("a stream ends before its requests: %s", self._failure)
        finally:
            if not self._closed:
                await self._out.put(None)

    async def _end_with_gateway(self, reading: asyncio.Task[None]) -> None:
        await self._stopping.wait()
        self._failure = Unavailable(
            "STOPPING", "the gateway stops and takes no more requests on this stream; open another", retry_after_s=1.0
        )
        reading.cancel()

    async def _read_all(self, messages: AsyncIterator[bytes], tasks: asyncio.TaskGroup) -> None:
        """Starts a task for every request, in their order, as many at once as there are slots."""
        async for data in messages:
            await self._slots.acquire()
            try:
                request = await self._read(data)
            except RouseError as error:
                request = _unreadable(data)
                tasks.create_task(self._one(request, self._turn(request), error))
            else:
                tasks.create_task(self._one(request, self._turn(request)))

    def _turn(self, request: Request) -> _Turn:
        """The place of a request that was just read."""
        ended, answered = asyncio.Event(), asyncio.Event()
        before = answered_before = None
        options = request.parameters.options
        if options is not None and options.sequence.id:
            key = (request.model, options.sequence.id)
            before, self._sequences[key] = self._sequences.get(key), ended
        if not self._inferences.is_decoupled(request.model, request.version):
            answered_before, self._last_answered = self._last_answered, answered
        return _Turn(before, ended, answered_before, answered)

    async def _one(self, request: Request, turn: _Turn, refusal: RouseError | None = None) -> None:
        """Serves one request to its end; a failure becomes a response."""
        arrived = self._clock.monotonic()
        try:
            with telemetry.span("ModelInfer", SpanKind.SERVER, self._settings.parent, streamed=True):
                try:
                    if refusal is not None:
                        raise refusal
                    if turn.before is not None:
                        await turn.before.wait()
                    await self._serve(request, turn, arrived)
                except RouseError as error:
                    await self._answered_before(turn)
                    await self._fail(error, request)
        finally:
            turn.ended.set()
            turn.answered.set()
            self._slots.release()
            self._forget(turn)

    def _forget(self, turn: _Turn) -> None:
        for key in [key for key, last in self._sequences.items() if last is turn.ended]:
            del self._sequences[key]

    async def _serve(self, request: Request, turn: _Turn, arrived: float) -> None:
        decoupled = self._inferences.is_decoupled(request.model, request.version)
        trace_id, version = telemetry.current_trace_id(), request.version
        caller = self._settings.caller._replace(time_left_s=self._time_left_s(request, arrived))
        if not decoupled:
            reply = await self._inferences.infer(request, caller)
            await self._answered_before(turn)
            await self._emit(protocol.streamed(protocol.write_response(reply, request.id, trace_id, final=True)))
            return
        async with aclosing(self._inferences.stream(request, caller)) as replies:
            async for reply in replies:
                version = reply.answer.version.number
                await self._emit(protocol.streamed(protocol.write_response(reply, request.id, trace_id, final=False)))
        if request.parameters.empty_final:
            await self._emit(protocol.write_final(request, version, trace_id))

    def _time_left_s(self, request: Request, arrived: float) -> float:
        """Until the request's own deadline or the stream's, whichever comes first."""
        now = self._clock.monotonic()
        timeout_s = request.parameters.timeout_s
        bounds = [] if timeout_s is None else [arrived + timeout_s]
        bounds += [] if self._deadline is None else [self._deadline]
        return min(bounds, default=arrived + self._settings.default_timeout_s) - now

    async def _answered_before(self, turn: _Turn) -> None:
        if turn.answered_before is not None:
            await turn.answered_before.wait()

    async def _fail(self, error: RouseError, request: Request) -> None:
        if self._settings.strict:
            self._failure = error
            raise _Ended
        error.metadata.setdefault("trace_id", telemetry.current_trace_id())
        await self._emit(protocol.write_error(error, request.id, request.model))

    async def _emit(self, response: bytes) -> None:
        """Hands a response out as soon as the client reads."""
        try:
            async with asyncio.timeout(STALL_S):
                await self._out.put(response)
        except TimeoutError:
            self._failure = ResourceExhausted(
                "CLIENT_STALLED", f"the client has read nothing for {STALL_S:.0f} s; the stream is ended"
            )
            if self._reader is not None:
                self._reader.cancel()  # it stands in a write that nobody reads
            raise _Ended from None


class _Ended(Exception):
    """The stream ends before its requests have."""


def _unreadable(data: bytes) -> Request:
    """As much of a bad request as its error needs: whose it is."""
    try:
        message, _ = protocol.split_request(data)
    except RouseError:
        return Request("", "", "", ())
    return Request(message.model_name, message.model_version, message.id, ())
