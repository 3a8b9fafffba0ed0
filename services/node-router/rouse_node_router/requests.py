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
from rouse_common.errors import DeadlineExceeded, RouseError, Unavailable
from rouse_contracts import cluster, functions, node, wire
from rouse_contracts.wire import Buffer
from rouse_node_router import metrics
from rouse_node_router.adapters.devices import Devices, Lease
from rouse_node_router.adapters.executors import Executed, Executors, NotExecuted
from rouse_node_router.adapters.usage import Usage
from rouse_node_router.queues import Outcome, Queues, Ticket, expired

LOG = logging.getLogger(__name__)

# Executions of one request that may be tried, all but the last without anything having run.
TRIES = 3
# Before the next try the node is given a moment to notice what became of the executor.
RETRY_PAUSE_S = 0.02
# Kept back from the caller's deadline, so that our own answer still reaches it.
MARGIN_S = 0.005
MARGIN_SHARE = 0.1

# Sends one of several responses, as parts of a serialised InferResponse; waits while the caller does not read.
Send: TypeAlias = Callable[[Sequence[Buffer]], Awaitable[None]]

NO_INSTANCE = "NO_INSTANCE"
# Refusals of gpu-server after which another try on this node would end the same way.
NOT_HERE = ("NO_EXECUTOR", "GPU_SERVER_AWAY", "NODE_STOPPING")


@dataclass(slots=True)
class Served:
    """What a request did while it was here, for its timings and its usage record. Times in milliseconds."""

    device: str = ""
    device_ms: float = 0.0
    swap_ms: float = 0.0
    queue_ms: float = 0.0
    swapped_in: bool = False
    sent: bool = False


class Requests:
    """Serves requests, many at once; each in the task of its caller, so that cancelling that is enough."""

    def __init__(
        self, node_id: str, queues: Queues, devices: Devices, executors: Executors, usage: Usage,
        windows: Windows, clock: Clock,
    ) -> None:  # fmt: skip
        self._node_id, self._queues, self._devices = node_id, queues, devices
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
        now = self._clock.monotonic()
        deadline = now + remaining_s - min(MARGIN_S, remaining_s * MARGIN_SHARE)
        ticket = self._queues.enter(request.function, request.version_id, request.queue_capacity, deadline)
        served = Served()
        error: BaseException | None = None
        try:
            await self._turn(ticket)
            executed = await self._serve(ticket, request, inputs, served, send)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._end(ticket, request, served, error)
        return None if executed is None else self._answer(ticket, served, executed)

    async def _turn(self, ticket: Ticket) -> None:
        """Waits until the request may ask for a device."""
        queue = ticket.queue
        with telemetry.span("queue", function=queue.function, version=queue.version_id) as span:
            if not ticket.turn.done():
                try:
                    async with asyncio.timeout(self._left(ticket)):
                        await ticket.turn
                except TimeoutError:
                    raise expired(queue.function, queue.version_id) from None
            ticket.turn.result()
            span.set_attribute("queued_ms", (self._clock.monotonic() - ticket.arrived) * 1000)

    async def _serve(
        self, ticket: Ticket, request: node.InferRequest, inputs: Buffer, served: Served, send: Send
    ) -> Executed | None:
        """Has the request executed under a lease; under another one where nothing has run."""
        for attempt in range(1, TRIES + 1):
            try:
                lease = await self._lease(ticket, request, served)
                return await self._execute(ticket, lease, request, inputs, served, send)
            except NotExecuted as refused:
                metrics.RETRIES.labels(refused.reason).inc()
                if attempt == TRIES:
                    raise self._no_instance(request, f"{refused} (after {attempt} tries)") from None
                LOG.info(
                    "request tried again function=%s attempt=%d reason=%s error=%s",
                    request.function, attempt, refused.reason, refused,
                )  # fmt: skip
                await self._pause(ticket, RETRY_PAUSE_S * attempt)
        raise AssertionError("the last try returns or raises")

    async def _lease(self, ticket: Ticket, request: node.InferRequest, served: Served) -> Lease:
        try:
            lease = await self._devices.acquire(request.version_id, request.request_id, self._left(ticket))
        except Unavailable as error:
            if error.reason in NOT_HERE:
                raise self._no_instance(request, str(error)) from None
            # A lease that was never granted leaves nothing behind, so this may be tried again.
            raise NotExecuted(error.reason, str(error), suspect=False) from None
        except DeadlineExceeded:
            raise DeadlineExceeded(
                "DEADLINE_EXCEEDED",
                f"the deadline passed while function '{request.function}' waited for a device of node "
                f"'{self._node_id}'; it was not executed",
                function=request.function, node=self._node_id,
            ) from None  # fmt: skip
        self._queues.granted(ticket)
        waited_ms = (self._clock.monotonic() - ticket.arrived) * 1000
        served.device, served.swapped_in = lease.device, served.swapped_in or lease.swapped_in
        served.swap_ms += lease.swap_ms
        served.queue_ms = max(0.0, waited_ms - served.swap_ms)
        metrics.QUEUE_DELAY.observe(waited_ms / 1000)
        if lease.swapped_in:
            metrics.LOADING_QUEUE_DELAY.observe(waited_ms / 1000)
        return lease

    async def _execute(
        self, ticket: Ticket, lease: Lease, request: node.InferRequest, inputs: Buffer, served: Served, send: Send
    ) -> Executed | None:
        """Executes under the lease and gives it back, whatever happens."""
        abandoned = False
        try:
            left = self._left(ticket)
            # Unless told otherwise, what was handed over may still be at work.
            abandoned = served.sent = True
            executed = None
            if request.decoupled:
                await self._pass_on(ticket, lease, request, inputs, served, send)
            else:
                executed = await self._executors.execute(lease, request, inputs, left)
                served.device_ms = executed.device_ms
            abandoned = False
        except NotExecuted as refused:
            abandoned, served.sent = refused.suspect, False
            self._queues.again(ticket)
            raise
        except RouseError as error:
            # Any other is the executor's own answer: it has ended the request, and is idle.
            abandoned = abandoned and error.reason in ("EXECUTOR_LOST", "DEADLINE_EXCEEDED")
            raise
        finally:
            self._devices.release(lease, served.device_ms, abandoned=abandoned)
        return executed

    async def _pass_on(
        self, ticket: Ticket, lease: Lease, request: node.InferRequest, inputs: Buffer, served: Served, send: Send
    ) -> None:
        """Sends the responses of a decoupled function as they come."""
        async with aclosing(self._executors.stream(lease, request, inputs, self._left(ticket))) as responses:
            async for executed in responses:
                served.device_ms += executed.device_ms
                if executed.outputs:
                    await send(self._answer(ticket, served, executed))

    def _end(self, ticket: Ticket, request: node.InferRequest, served: Served, error: BaseException | None) -> None:
        outcome = self._outcome(ticket, error)
        self._queues.leave(ticket, outcome)
        if outcome is Outcome.COMPLETED:
            self._windows.count_completion(request.function, served.device_ms)
        # A request that a gateway sends elsewhere is recorded there, under the same id.
        if not served.sent and outcome is not Outcome.EXPIRED:
            return
        record = cluster.UsageRecord(
            request_id=request.request_id,
            function=request.function,
            version_id=request.version_id,
            node_id=self._node_id,
            device=served.device,
            device_ms=served.device_ms,
            swap_ms=served.swap_ms,
            queue_ms=served.queue_ms,
            status_code=_status(error),
            swapped_in=served.swapped_in,
            tenant=request.tenant,
        )
        record.finished_at.FromNanoseconds(int(self._clock.now() * 1e9))
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
        rest = node.InferResponse(timings=timings, device=served.device, swapped_in=served.swapped_in)
        return wire.joined(rest.SerializeToString(), node.InferResponse.OUTPUTS_FIELD_NUMBER, executed.outputs)

    def _left(self, ticket: Ticket) -> float:
        """Seconds until the request must be answered. Raises DeadlineExceeded where none are left."""
        left = ticket.deadline - self._clock.monotonic()
        if left <= 0:
            raise expired(ticket.queue.function, ticket.queue.version_id)
        return left

    async def _pause(self, ticket: Ticket, seconds: float) -> None:
        await asyncio.sleep(min(seconds, self._left(ticket)))

    def _no_instance(self, request: node.InferRequest, why: str) -> Unavailable:
        return Unavailable(
            NO_INSTANCE,
            f"node '{self._node_id}' has no instance of function '{request.function}' that takes requests, and "
            f"nothing was executed: {why}; send it to another node or wake the function",
            function=request.function, version=request.version_id, node=self._node_id,
        )  # fmt: skip


def _status(error: BaseException | None) -> int:
    """The gRPC status code that the request ends with."""
    if error is None:
        code = grpc.StatusCode.OK
    elif isinstance(error, RouseError):
        code = error.code
    elif isinstance(error, asyncio.CancelledError):
        code = grpc.StatusCode.CANCELLED
    else:
        code = grpc.StatusCode.INTERNAL
    number: int = code.value[0]
    return number
