"""The life of one request on the node: queue, lease, execution, answer. Each ends exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import grpc

from rouse_cache import Windows
from rouse_common import telemetry
from rouse_common.clock import Clock
from rouse_common.errors import DeadlineExceeded, InvalidArgument, RouseError, Unavailable
from rouse_common.expiring import expiring
from rouse_contracts import cluster, functions, node, wire
from rouse_contracts.wire import Buffer
from rouse_node_router import metrics, sequences
from rouse_node_router.adapters.executors import Executed, Executors, NotExecuted
from rouse_node_router.adapters.usage import Usage
from rouse_node_router.answers import NO_INSTANCE, expired, no_instance, unanswered
from rouse_node_router.carriers import Batch, Carriers, Done, Grant, Use
from rouse_node_router.queues import Queues
from rouse_node_router.replays import key_of
from rouse_node_router.sequences import Sequences
from rouse_node_router.tickets import Outcome, Ticket

LOG = logging.getLogger(__name__)

# Executions of one request that may be tried, all but the last without anything having run.
TRIES = 3
# Before the next try the node is given a moment to notice what became of the executor.
RETRY_PAUSE_S = 0.02
# Kept back from the caller's deadline, so that our own answer still reaches it.
MARGIN_S = 0.005
MARGIN_SHARE = 0.1
# What says that a sequence has lost its instance.
INSTANCE_GONE = ("INSTANCE_GONE", "EXECUTOR_LOST", NO_INSTANCE)

# Sends one of several responses, as parts of a serialised InferResponse; waits while the caller does not read.
Send: TypeAlias = Callable[[Sequence[Buffer]], Awaitable[None]]


@dataclass(slots=True)
class Served:
    """What a request did while it was here, for its timings and its usage record. Times in milliseconds.

    Attributes:
        device_ms: the device's work for it; charged_ms: its part of it, where that was for others too.
    """

    device: str = ""
    device_ms: float = 0.0
    charged_ms: float = 0.0
    swap_ms: float = 0.0
    queue_ms: float = 0.0
    swapped_in: bool = False
    pays_swap: bool = True
    sent: bool = False
    requests: int = 1


class Requests:
    """Serves requests, many at once; each in the task of its caller, so that cancelling that is enough."""

    def __init__(
        self, node_id: str, queues: Queues, carriers: Carriers, executors: Executors, usage: Usage,
        windows: Windows, clock: Clock, known_sequences: Sequences,
    ) -> None:  # fmt: skip
        self._node_id, self._queues, self._carriers = node_id, queues, carriers
        self._sequences = known_sequences
        self._executors, self._usage, self._windows = executors, usage, windows
        self._clock = clock

    async def infer(
        self, request: node.InferRequest, inputs: Buffer, remaining_s: float, send: Send
    ) -> Sequence[Buffer] | None:
        """Serves one request within `remaining_s` seconds; parts of a serialised InferResponse, or None for a
        decoupled function, whose responses were all sent.

        Args:
            request: all but its inputs.
            inputs: the inputs, as they were received.
            remaining_s: time until the caller's deadline.
            send: takes the responses of a decoupled function.

        Raises what NodeService.Infer documents.
        """
        most = request.batching.max_batch_size
        if most > 1 and request.rows > most:
            raise InvalidArgument(
                "BATCH_TOO_LARGE",
                f"the request has {request.rows} rows; function '{request.function}' takes {most} at most",
                function=request.function,
            )
        now = self._clock.monotonic()
        deadline = now + remaining_s - min(MARGIN_S, remaining_s * MARGIN_SHARE)
        if not request.options.sequence.id:
            return await self._infer(request, inputs, deadline, send)
        sequence = self._sequences.of(request)
        try:
            async with sequence.turn(request, deadline - now):
                return await self._infer(request, inputs, deadline, send, sequence)
        finally:
            self._sequences.ended(request, sequence)

    async def _infer(
        self,
        request: node.InferRequest,
        inputs: Buffer,
        deadline: float,
        send: Send,
        sequence: sequences.Sequence | None = None,
    ) -> Sequence[Buffer] | None:
        if sequence is not None and sequence.lost:
            raise sequences.lost(request)
        instance_id = sequence.instance_id if sequence is not None else ""
        ticket = self._queues.enter(request, inputs, deadline, instance_id, key_of(request, inputs))
        served = Served()
        try:
            done = await self._serve(ticket, served, send, sequence)
        except BaseException as error:
            self._end(ticket, served, None, error, self._clock.monotonic())
            raise
        # The caller has its answer before the books are closed.
        ticket.turn.get_loop().call_soon(self._end, ticket, served, done, None, self._clock.monotonic())
        return None if request.decoupled else self._answer(ticket, served, done.executed)

    async def _serve(self, ticket: Ticket, served: Served, send: Send, sequence: sequences.Sequence | None) -> Done:
        """Has the request executed under a lease; under another one where nothing has run."""
        request = ticket.request
        for attempt in range(1, TRIES + 1):
            try:
                grant = await self._turn(ticket)
                self._holds(ticket, grant, served)
                if sequence is not None:
                    sequence.instance_id = grant.lease.instance_id
                if grant.batch is not None:
                    return await self._share(ticket, grant.lease.device, grant.batch, served)
                return await self._alone(ticket, Use(grant.lease), served, send)
            except NotExecuted as refused:
                served.sent = False
                if sequence is not None:
                    # Its first request may yet be executed by another one.
                    sequence.instance_id = ticket.instance_id
                self._queues.unexecuted(ticket)
                pause_s = 0.0 if ticket.tape_key else RETRY_PAUSE_S * attempt
                ticket.tape_key = _tapes_after(refused, ticket)
                metrics.RETRIES.labels(refused.reason).inc()
                if attempt == TRIES:
                    raise no_instance(self._node_id, request, f"{refused} (after {attempt} tries)") from None
                LOG.info(
                    "request tried again function=%s attempt=%d reason=%s error=%s",
                    request.function, attempt, refused.reason, refused,
                )  # fmt: skip
                await asyncio.sleep(min(pause_s, self._left(ticket)))
                self._queues.again(ticket)
            except Unavailable as error:
                if sequence is None or not sequence.instance_id or error.reason not in INSTANCE_GONE:
                    raise
                sequence.lost = True
                if served.sent:
                    raise
                raise sequences.lost(request) from None
        raise AssertionError("the last try returns or raises")

    async def _turn(self, ticket: Ticket) -> Grant:
        """Waits until the request holds a device."""
        request = ticket.request
        with telemetry.span("queue", function=request.function, version=request.version_id) as span:
            try:
                if ticket.asks_itself:
                    async with asyncio.timeout(self._left(ticket)):
                        grant = await self._carriers.asked_by(ticket)
                else:
                    with expiring(ticket.turn, self._left(ticket)):
                        grant = await ticket.turn
            except TimeoutError:
                self._carriers.not_taken(ticket)
                raise expired(request) from None
            except asyncio.CancelledError:
                self._carriers.not_taken(ticket)
                raise
            span.set_attribute("queued_ms", (self._clock.monotonic() - ticket.arrived) * 1000)
        return grant

    def _holds(self, ticket: Ticket, grant: Grant, served: Served) -> None:
        """Takes note of the lease."""
        lease = grant.lease
        waited_ms = (self._clock.monotonic() - ticket.arrived) * 1000
        served.device, served.swapped_in = lease.device, served.swapped_in or lease.swapped_in
        # Who came while the model was on its way waited for a part of it only.
        served.swap_ms = min(waited_ms, served.swap_ms + lease.swap_ms)
        served.queue_ms = max(0.0, waited_ms - served.swap_ms)
        metrics.QUEUE_DELAY.observe(waited_ms / 1000)
        if lease.swapped_in:
            metrics.LOADING_QUEUE_DELAY.observe(waited_ms / 1000)

    async def _share(self, ticket: Ticket, device: str, batch: Batch, served: Served) -> Done:
        """Waits for the request's part of a batch."""
        served.sent = True
        with telemetry.span("batch", requests=batch.requests, rows=batch.rows, trace=batch.trace_id):
            try:
                async with asyncio.timeout(ticket.deadline - self._clock.monotonic()):
                    done = await batch.result(ticket)
            except TimeoutError:
                raise unanswered(ticket.request, device) from None
        served.device_ms, served.charged_ms = done.executed.device_ms, done.device_ms
        served.requests, served.pays_swap = done.requests, done.pays_swap
        return done

    async def _alone(self, ticket: Ticket, use: Use, served: Served, send: Send) -> Done:
        """Executes under a lease of the request's own and gives it back, whatever happens."""
        try:
            left_s = self._left(ticket)
            served.sent = True
            if ticket.request.decoupled:
                return await self._pass_on(ticket, use, left_s, served, send)
            done = await self._carriers.execute(use, ticket, left_s)
            served.device_ms = served.charged_ms = done.device_ms
            return done
        except (NotExecuted, RouseError) as error:
            use.failed(error)
            raise
        finally:
            self._carriers.give_back(use)

    async def _pass_on(self, ticket: Ticket, use: Use, left_s: float, served: Served, send: Send) -> Done:
        """Sends the responses of a decoupled function as they come."""
        use.busy = True
        input_ms = output_ms = 0.0
        request = ticket.request
        async with aclosing(self._executors.stream(use.lease, request, (ticket.inputs,), left_s)) as responses:
            async for executed in responses:
                use.device_ms += executed.device_ms
                input_ms, output_ms = input_ms + executed.input_ms, output_ms + executed.output_ms
                served.device_ms = served.charged_ms = use.device_ms
                if executed.outputs:
                    await send(self._answer(ticket, served, executed))
        use.busy = False
        whole = Executed(b"", use.device_ms, input_ms, output_ms)
        self._carriers.count(ticket.queue, 1, ticket.rows, whole)
        return Done(whole, use.device_ms)

    def _end(
        self, ticket: Ticket, served: Served, done: Done | None, error: BaseException | None, ended: float
    ) -> None:
        """The request has left, at monotonic second `ended`."""
        request, outcome, now = ticket.request, self._outcome(ticket, error), self._clock.now()
        self._queues.charge(ticket, served.charged_ms / 1000)
        self._queues.leave(ticket, outcome)
        total_ms = (ended - ticket.arrived) * 1000
        statistics = ticket.queue.statistics
        if done is not None:
            self._windows.count_completion(request.function, served.charged_ms)
            statistics.succeeded(ticket.rows, total_ms, served.queue_ms, done.compute, now)
        else:
            statistics.failed(total_ms, cancelled=outcome is Outcome.CANCELLED)
        # A request that a gateway sends elsewhere is recorded there, under the same id.
        if not served.sent and outcome is not Outcome.EXPIRED:
            return
        record = cluster.UsageRecord(
            request_id=request.request_id,
            function=request.function,
            version_id=request.version_id,
            node_id=self._node_id,
            device=served.device,
            device_ms=served.charged_ms,
            swap_ms=served.swap_ms if served.pays_swap else 0.0,
            queue_ms=served.queue_ms,
            status_code=_status(error),
            swapped_in=served.swapped_in and served.pays_swap,
            tenant=request.tenant,
        )
        record.finished_at.seconds, record.finished_at.nanos = int(now), int(now % 1 * 1e9)
        self._usage.add(record)

    def _outcome(self, ticket: Ticket, error: BaseException | None) -> Outcome:
        if error is None:
            return Outcome.COMPLETED
        if isinstance(error, DeadlineExceeded):
            return Outcome.EXPIRED
        if isinstance(error, asyncio.CancelledError):
            # The link cancels the handler both where the caller gives up and where its deadline passes.
            return Outcome.EXPIRED if self._clock.monotonic() >= ticket.deadline else Outcome.CANCELLED
        return Outcome.FAILED

    def _answer(self, ticket: Ticket, served: Served, executed: Executed) -> Sequence[Buffer]:
        timings = functions.Timings(
            queue_ms=served.queue_ms,
            swap_ms=served.swap_ms,
            execute_ms=served.device_ms,
            total_ms=(self._clock.monotonic() - ticket.arrived) * 1000,
        )
        rest = node.InferResponse(
            timings=timings, device=served.device, swapped_in=served.swapped_in, batch_requests=served.requests
        )
        return wire.joined(rest.SerializeToString(), node.InferResponse.OUTPUTS_FIELD_NUMBER, executed.outputs)

    def _left(self, ticket: Ticket) -> float:
        """Seconds until the request must be answered. Raises DeadlineExceeded where none are left."""
        left = ticket.deadline - self._clock.monotonic()
        if left <= 0:
            raise expired(ticket.request)
        return left


def _tapes_after(refused: NotExecuted, ticket: Ticket) -> str:
    """The tapes that a request asks for next. Where they failed it, whatever was wrong: none, for an instance, where
    there is one, answers all requests."""
    return ticket.tape_key if refused.reason == "GPU_SERVER_LOST" else ""


def _status(error: BaseException | None) -> int:
    """The gRPC status code that the request ends with."""
    if error is None:
        return 0
    if isinstance(error, RouseError):
        code = error.code
    elif isinstance(error, asyncio.CancelledError):
        code = grpc.StatusCode.CANCELLED
    else:
        code = grpc.StatusCode.INTERNAL
    number: int = code.value[0]
    return number
