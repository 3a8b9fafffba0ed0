"""What carries requests to devices: asks for a lease, and has one request or a batch executed under it.

A lease belongs to a version, not to a request: who goes is decided when it is there. One request takes it over and
is executed in its own task, so that cancelling that is enough. A batch is executed here, by the task that asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from rouse_common import telemetry
from rouse_common.clock import Clock
from rouse_common.errors import DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, RouseError, Unavailable
from rouse_contracts import node
from rouse_contracts.wire import Buffer
from rouse_node_router import batches, metrics
from rouse_node_router.adapters.devices import Lease
from rouse_node_router.adapters.executors import Executed, Executors, NotExecuted
from rouse_node_router.answers import expired, no_instance, unanswered
from rouse_node_router.leases import Leases
from rouse_node_router.queues import Queues
from rouse_node_router.replays import tapes_for
from rouse_node_router.statistics import Compute
from rouse_node_router.tickets import Ticket
from rouse_node_router.versions import VersionQueue

LOG = logging.getLogger(__name__)

# Requests that come while a lease is asked for are executed under it too, so it may be kept for as long again as
# those have time that were here when it was asked for; so much longer at most.
MAX_HOLD_S = 60.0
# Refusals of gpu-server after which another try on this node would end the same way.
NOT_HERE = ("NO_EXECUTOR", "GPU_SERVER_AWAY", "NODE_STOPPING")
# What a batch fails with as a whole though only one of its members may be at fault.
MEMBERS_FAULT = ("FUNCTION_RAISED", "BAD_RESULT")


class Grant(NamedTuple):
    """A device is there. Without a batch the lease is the request's own, and it has to give it back."""

    lease: Lease
    batch: Batch | None = None


class Done(NamedTuple):
    """How a request was executed.

    Args:
        executed: its outputs, and the times of the whole execution.
        device_ms: its part of the device's work, by rows.
        requests: that were executed together.
        swap_ms: of a swap that it, and no other request, is to pay.
    """

    executed: Executed
    device_ms: float
    requests: int = 1
    pays_swap: bool = True

    @property
    def compute(self) -> Compute:
        return Compute(self.executed.input_ms, self.executed.device_ms, self.executed.output_ms)


class Use:
    """A lease in use: what the device worked, whether it may still be at it, and whether the executor refused it."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.device_ms = 0.0
        self.executions = self.replays = 0
        self.busy = self.refused = False

    def ended(self, executed: Executed) -> None:
        """Takes note of an execution that went well."""
        self.busy = False
        self.device_ms += executed.device_ms
        self.executions += 1
        self.replays += executed.replayed

    def failed(self, error: Exception) -> None:
        """Takes note of how an execution failed."""
        if isinstance(error, NotExecuted):
            self.busy, self.refused = error.suspect, True
        elif isinstance(error, RouseError):
            # Any other is the executor's own answer: it has ended the request, and is idle.
            self.busy = error.reason in ("EXECUTOR_LOST", "DEADLINE_EXCEEDED")


class Batch:
    """Requests that are executed together, each with a result of its own.

    Args:
        task: executes them; cancelled when nobody waits for any of them any more.
    """

    def __init__(self, tickets: Sequence[Ticket], task: asyncio.Task[None], reason: str) -> None:
        loop = asyncio.get_running_loop()
        self._results: dict[Ticket, asyncio.Future[Done]] = {ticket: loop.create_future() for ticket in tickets}
        self._task, self._over = task, False
        self.requests, self.rows, self.reason = len(tickets), sum(ticket.rows for ticket in tickets), reason
        self.trace_id = telemetry.current_trace_id()

    @property
    def members(self) -> list[Ticket]:
        """Those that still want to know."""
        return [ticket for ticket, result in self._results.items() if not result.done()]

    async def result(self, ticket: Ticket) -> Done:
        """What became of the member. Who is cancelled here leaves the batch."""
        try:
            return await self._results[ticket]
        finally:
            self.drop(ticket)

    def drop(self, ticket: Ticket) -> None:
        """The member does not wait any more."""
        result = self._results.pop(ticket, None)
        if result is not None and not result.done():
            result.cancel()
        if not self._results and not self._over:
            self._over = True
            self._task.cancel()

    def answer(self, ticket: Ticket, answer: Done | Exception) -> None:
        """Ends the member; nothing happens where it is gone."""
        result = self._results.get(ticket)
        if result is None or result.done():
            return
        if isinstance(answer, Done):
            result.set_result(answer)
        else:
            result.set_exception(answer)
            # Seen, whether or not its owner is still there to read it.
            result.exception()

    def fail(self, error: Exception) -> None:
        """Ends all members, each with an error object of its own."""
        for ticket in self.members:
            self.answer(ticket, _copy(error))

    def end(self) -> None:
        """Nothing is left to be cancelled."""
        self._over = True


class Carriers:
    """Asks for leases and executes batches, in the given group."""

    def __init__(
        self,
        node_id: str,
        queues: Queues,
        devices: Leases,
        executors: Executors,
        tasks: asyncio.TaskGroup,
        clock: Clock,
    ) -> None:
        self._node_id, self._queues, self._devices, self._executors = node_id, queues, devices, executors
        self._tasks, self._clock = tasks, clock
        queues.asks_with(self.ask)

    def ask(self, queue: VersionQueue, head: Ticket) -> asyncio.Task[None] | None:
        """Asks for a device, in the trace of the request that is next; None where one is there, and given to it."""
        alone = queue.settings.max_rows == 1 or len(queue.lanes) == 1
        if alone and (lease := self._devices.take(queue.version_id, queue.latest)) is not None:
            self._grant(queue, lease)
            return None
        return self._tasks.create_task(self._carry(queue, head), context=head.context.copy())

    async def asked_by(self, ticket: Ticket) -> Grant:
        """A lease for the one instance, or for the tapes, that will do for a request, asked for in its own task. Raises
        as a turn."""
        request, timeout_s = ticket.request, ticket.deadline - self._clock.monotonic()
        # Nobody else takes over what an instance alone may answer.
        hold_s = timeout_s if ticket.instance_id else _hold_s(timeout_s)
        try:
            lease = await self._devices.acquire(
                request.version_id, request.request_id, timeout_s, hold_s, ticket.instance_id, ticket.tenant,
                ticket.weight, ticket.tape_key,
            )  # fmt: skip
        except RouseError as error:
            if error.reason == "INSTANCE_GONE":
                raise
            raise self._refusal(error, ticket) or expired(request) from None
        self._queues.holds(ticket)
        return Grant(lease)

    async def execute(self, use: Use, ticket: Ticket, timeout_s: float) -> Done:
        """Executes one request under a lease. Raises as Executors.execute does."""
        use.busy = True
        try:
            executed = await self._executed(use.lease, [ticket], ticket.request, (ticket.inputs,), timeout_s)
        except RouseError:
            self._queues.executed(ticket.queue, 1, ticket.rows, None)
            raise
        use.ended(executed)
        self.count(ticket.queue, 1, ticket.rows, executed)
        return Done(executed, executed.device_ms)

    async def _executed(
        self,
        lease: Lease,
        members: Sequence[Ticket],
        request: node.InferRequest,
        inputs: Sequence[Buffer],
        timeout_s: float,
    ) -> Executed:
        """By a tape where one answers, else by the instance, within the same time."""
        until = self._clock.monotonic() + timeout_s
        tapes = tapes_for(lease, members)
        if tapes is not None:
            replayed = await self._executors.replay(lease, tapes, request, inputs, timeout_s)
            if replayed is not None:
                return replayed
        if not lease.executor_address:
            raise NotExecuted("NO_TAPE", "no tape has answered it, and there is no instance yet", suspect=False)
        return await self._executors.execute(lease, request, inputs, max(0.0, until - self._clock.monotonic()))

    def count(self, queue: VersionQueue, requests: int, rows: int, executed: Executed) -> None:
        """Learns from an execution that succeeded."""
        if queue.settings.max_rows > 1:
            metrics.BATCH_ROWS.observe(rows)
            metrics.BATCH_REQUESTS.observe(requests)
        queue.statistics.executed(rows, Compute(executed.input_ms, executed.device_ms, executed.output_ms))
        seconds = (executed.input_ms + executed.device_ms + executed.output_ms) / 1000
        self._queues.executed(queue, requests, rows, seconds)

    def _grant(self, queue: VersionQueue, lease: Lease) -> None:
        """A lease for the next request, which is executed alone."""
        members, _ = self._queues.granted(queue, None, lease.until)
        if members:
            members[0].turn.set_result(Grant(lease))
        else:
            self._devices.rest(lease)

    def give_back(self, use: Use) -> None:
        """The lease goes to the next request of its version where it may, else back, in the background."""
        lease, well = use.lease, use.executions and not (use.busy or use.refused)
        replayed = 0 < use.executions == use.replays
        # What is queued wants an instance; and where it may wait for company, only its ask says that it need no longer.
        queue = self._queues.waiting(lease.version_id) if well and not lease.tape_key else None
        if queue is not None and queue.settings.max_rows == 1:
            goes_on = self._devices.go_on(lease, use.device_ms, replayed=replayed)
            if goes_on is not None:
                self._grant(queue, goes_on)
                return
        self._devices.release(lease, use.device_ms, abandoned=use.busy, again=not use.refused, replayed=replayed)

    def not_taken(self, ticket: Ticket) -> None:
        """Gives back what a request was granted that is not there any more to take it."""
        turn = ticket.turn
        if not turn.done() or turn.cancelled() or turn.exception() is not None:
            return
        grant = turn.result()
        if grant.batch is None:
            self.give_back(Use(grant.lease))
        else:
            grant.batch.drop(ticket)

    # ---- The task of an ask --------------------------------------------------------------------

    async def _carry(self, queue: VersionQueue, head: Ticket) -> None:
        task = asyncio.current_task()
        assert task is not None
        timeout_s = max(0.0, queue.latest - self._clock.monotonic())
        hold_s = _hold_s(timeout_s)
        try:
            lease = await self._devices.acquire(
                queue.version_id, head.request.request_id, timeout_s, hold_s, "", head.tenant, head.weight
            )
        except RouseError as error:
            self._no_device(queue, task, error)
            return
        except Exception as error:
            LOG.exception("asking for a device failed function=%s", queue.function)
            failure = Internal(
                "ASK_FAILED", f"no device could be asked for, for function '{queue.function}': {error!r}"
            )
            self._no_device(queue, task, failure)
            return
        members, reason = self._queues.granted(queue, task, lease.until)
        use = Use(lease)
        if len(members) == 1:
            members[0].turn.set_result(Grant(lease))
            return
        batch = Batch(members, task, reason)
        try:
            for ticket in members:
                ticket.turn.set_result(Grant(lease, batch))
            if members:
                await self._run(use, batch)
        except Exception as error:
            LOG.exception("a batch failed function=%s", queue.function)
            batch.fail(Internal("BATCH_FAILED", f"a batch of function '{queue.function}' failed: {error!r}"))
        finally:
            batch.end()
            self.give_back(use)

    def _no_device(self, queue: VersionQueue, task: asyncio.Task[None], error: RouseError) -> None:
        """Says what gpu-server refused to those whom it concerns."""
        all_ = error.reason in NOT_HERE or isinstance(error, FailedPrecondition)
        self._queues.no_device(queue, task, partial(self._refusal, error), all_=all_)

    def _refusal(self, error: RouseError, ticket: Ticket) -> Exception | None:
        """What a request is told about it."""
        if isinstance(error, DeadlineExceeded):
            # Those that the lease was asked for have expired, and know it; who came later asks again.
            return None
        if not isinstance(error, Unavailable):
            return _copy(error)
        if error.reason in NOT_HERE:
            return no_instance(self._node_id, ticket.request, str(error))
        # A lease that was never granted leaves nothing behind, so this may be tried again.
        return NotExecuted(error.reason, str(error), suspect=False)

    async def _run(self, use: Use, batch: Batch) -> None:
        """Executes a batch; one by one where it fails for what may be the fault of one member."""
        members = batch.members
        queue, rows = members[0].queue, [ticket.rows for ticket in members]
        timeout_s = max(ticket.deadline for ticket in members) - self._clock.monotonic()
        with telemetry.span(
            "batch", function=queue.function, requests=len(members), rows=sum(rows), reason=batch.reason
        ):
            try:
                executed = await self._together(use, members, timeout_s)
                outputs = batches.split(executed.outputs, rows, queue.function)
            except (NotExecuted, RouseError) as error:
                use.failed(error)
                if isinstance(error, InvalidArgument) or error.reason in MEMBERS_FAULT:
                    LOG.info("batch executed one by one function=%s requests=%d: %s", queue.function, len(rows), error)
                    await self._one_by_one(use, batch)
                    return
                if isinstance(error, RouseError):
                    self._queues.executed(queue, len(members), sum(rows), None)
                batch.fail(error)
                return
        self.count(queue, len(members), sum(rows), executed)
        for ticket, output in zip(members, outputs, strict=True):
            part = Executed(output, executed.device_ms, executed.input_ms, executed.output_ms)
            share = executed.device_ms * ticket.rows / sum(rows)
            batch.answer(ticket, Done(part, share, len(members), pays_swap=ticket is members[0]))

    async def _together(self, use: Use, members: Sequence[Ticket], timeout_s: float) -> Executed:
        request = node.InferRequest()
        request.CopyFrom(members[0].request)
        request.rows = sum(ticket.rows for ticket in members)
        inputs = batches.join([ticket.inputs for ticket in members])
        use.busy = True
        executed = await self._executed(use.lease, members, request, inputs, timeout_s)
        use.ended(executed)
        return executed

    async def _one_by_one(self, use: Use, batch: Batch) -> None:
        """Executes members under the same lease, each for itself, so that a bad one fails alone."""
        first = True
        while members := batch.members:
            ticket = members[0]
            left_s = ticket.deadline - self._clock.monotonic()
            try:
                if left_s <= 0:
                    raise unanswered(ticket.request, use.lease.device)
                done = await self.execute(use, ticket, left_s)
                batch.answer(ticket, Done(done.executed, done.device_ms, pays_swap=first))
            except (NotExecuted, RouseError) as error:
                if left_s > 0:
                    use.failed(error)
                batch.answer(ticket, error)
                if use.busy or isinstance(error, NotExecuted):
                    # The executor is not there for the others any more; nothing of them has run under this lease
                    # but the batch, which it has refused.
                    batch.fail(NotExecuted(error.reason, str(error), suspect=False))
                    return
            first = False


def _copy(error: Exception) -> Exception:
    """The same error as an object of its own."""
    if isinstance(error, NotExecuted):
        return NotExecuted(error.reason, str(error), suspect=error.suspect)
    if isinstance(error, RouseError):
        copied = type(error)(error.reason, error.message, retry_after_s=error.retry_after_s)
        copied.metadata = dict(error.metadata)
        return copied
    return error


def _hold_s(timeout_s: float) -> float:
    """How long a lease may be kept that others can take over."""
    return timeout_s + min(timeout_s, MAX_HOLD_S)
