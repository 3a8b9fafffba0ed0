"""The way of one inference through the gateway: checked, admitted, held, routed, answered."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from rouse_cache import VERSION_MARK
from rouse_common import telemetry
from rouse_common.clock import Clock
from rouse_common.errors import (
    DeadlineExceeded,
    Internal,
    NotFound,
    ResourceExhausted,
    RouseError,
    Unavailable,
    Unimplemented,
)
from rouse_contracts import node
from rouse_contracts.wire import Buffer, split_bytes
from rouse_gateway import metrics, sequences, wire
from rouse_gateway.adapters.nodes import Nodes, NotExecuted
from rouse_gateway.asked import Answer, Call
from rouse_gateway.checks import check_request, count_rows
from rouse_gateway.sequences import Bond, Sequences
from rouse_gateway.state import Routes, Version
from rouse_gateway.wakes import Wakes
from rouse_policy import admission, routing

# Times that a request is sent to nodes which turn it away unexecuted, and the pauses between: together
# longer than a node's services need to come back, or the control plane to notice that the node is lost.
MAX_ATTEMPTS = 14
FIRST_PAUSE_S = 0.02
MAX_PAUSE_S = 1.0
# Kept back from the caller's deadline, so that the answer to it still arrives.
MARGIN_SHARE = 0.05
MAX_MARGIN_S = 0.01
RETRY_AFTER_S = 1.0
# Joined to a request's message.
TAPES_ONLY = node.InferRequest(tapes_only=True).SerializeToString()


@dataclass(slots=True)
class _Trip:
    """What is known of one request on its way."""

    version: Version
    request_id: str
    rows: int
    started: float
    deadline: float
    sequence: str = ""
    bond: Bond | None = None
    held_s: float = 0.0
    attempts: int = 0
    pause_s: float = FIRST_PAUSE_S
    excluded: set[str] = field(default_factory=set)
    refusal: NotExecuted | None = None
    # Whether the node that it goes to has tapes for it and no instance, and whether that is out of the question.
    by_tape: bool = False
    needs_instance: bool = False

    def message(self, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        """The request's message for the node that it goes to."""
        return [*parts, TAPES_ONLY] if self.by_tape else parts


class _Accounted:
    """Counts an inference, and completes the error that it ends with; gives the time that it began."""

    __slots__ = ("_call", "_clock", "_routes", "_started")

    def __init__(self, call: Call, routes: Routes, clock: Clock) -> None:
        self._call, self._routes, self._clock = call, routes, clock

    def __enter__(self) -> float:
        self._started = self._clock.monotonic()
        return self._started

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        code, label = "OK", self._call.function
        if isinstance(error, RouseError):
            code = error.code.name
            error.metadata.setdefault("function", label)
            error.metadata.setdefault("trace_id", telemetry.current_trace_id())
        elif error is not None:
            code = "CANCELLED" if isinstance(error, (asyncio.CancelledError, GeneratorExit)) else "INTERNAL"
        if label not in self._routes.table.functions:
            label = metrics.UNKNOWN  # names that anybody may make up are no labels
        metrics.answered(label, code, self._clock.monotonic() - self._started)


class Dispatcher:
    """Serves inferences.

    Args:
        count_arrival: told the function of every valid request, before it is admitted; and, of requests for other
            versions than the active one, once more the function with the version.
        admission_settings: bounds of holding.
    """

    def __init__(
        self,
        routes: Routes,
        nodes: Nodes,
        wakes: Wakes,
        clock: Clock,
        count_arrival: Callable[[str], None],
        admission_settings: admission.Settings,
    ) -> None:
        self._routes = routes
        self._nodes = nodes
        self._wakes = wakes
        self._clock = clock
        self._count_arrival = count_arrival
        self._admission_settings = admission_settings
        self._admission = admission.State()
        self._routing_settings = routing.Settings()
        self._routing = routing.State()
        self._sequences = Sequences(clock)
        self._held = 0

    async def infer(self, call: Call) -> Answer:
        """Serves one inference. Raises the RouseError of the contract; metadata names function, node, trace."""
        with _Accounted(call, self._routes, self._clock) as started:
            trip = await self._begin(call, started)
            if trip.version.decoupled:
                raise Unimplemented(
                    "DECOUPLED_FUNCTION",
                    f"function '{trip.version.function}' has any number of responses to a request; call it by a stream",
                    function=trip.version.function,
                )
            request = _message(trip, call)
            while True:
                node_id, address = await self._place(trip)
                try:
                    answer = await self._nodes.infer(address, trip.message(request), self._next_timeout_s(trip))
                except NotExecuted as error:
                    self._turned_away(trip, node_id, error)
                except RouseError as error:
                    raise self._explained(error, trip, node_id) from None
                else:
                    return self._answer(trip, node_id, answer)

    async def stream(self, call: Call) -> AsyncGenerator[Answer, None]:
        """The answers of one inference as they come: one of an ordinary function, any number of a decoupled one.
        Raises as `infer`; close it to give the inference up."""
        with _Accounted(call, self._routes, self._clock) as started:
            trip = await self._begin(call, started)
            request, came = _message(trip, call), False
            while True:
                node_id, address = await self._place(trip)
                try:
                    timeout_s = self._next_timeout_s(trip)
                    async with aclosing(self._nodes.stream(address, trip.message(request), timeout_s)) as answers:
                        async for answer in answers:
                            came = True
                            yield self._answer(trip, node_id, answer)
                    return
                except NotExecuted as error:
                    if came:
                        raise
                    self._turned_away(trip, node_id, error)
                except RouseError as error:
                    raise self._explained(error, trip, node_id) from None

    async def _begin(self, call: Call, started: float) -> _Trip:
        """Checks an inference and counts its arrival."""
        request_id = os.urandom(16).hex()
        sequence = call.options.sequence.id if call.options is not None else ""
        # Without an id of the client's no request is a repetition of another; a sequence stays with its version.
        key = sequence or call.idempotency_key or request_id
        version = self._routes.loaded_table().chosen(call.function, call.number, key)
        await check_request(version, call.inputs, call.output_names)
        rows = count_rows(version, call.inputs)
        self._count_arrival(version.function)
        if not version.active:
            self._count_arrival(f"{version.function}{VERSION_MARK}{version.version_id}")
        bond = self._sequences.bond(version.function, version.version_id, call.tenant, call.options)
        # A sequence's requests are one instance's.
        alone = bool(sequence) or version.decoupled
        return _Trip(
            version, request_id, rows, started, started + call.timeout_s, sequence, bond, needs_instance=alone
        )  # fmt: skip

    def _next_timeout_s(self, trip: _Trip) -> float:
        """Seconds that the next attempt has; counts it."""
        trip.attempts += 1
        left_s = trip.deadline - self._clock.monotonic()
        return left_s - min(MAX_MARGIN_S, left_s * MARGIN_SHARE)

    async def _place(self, trip: _Trip) -> tuple[str, str]:
        """The node to send to and its address, waiting for one where none is ready. Raises RouseError."""
        while True:
            table = self._routes.table
            version = self._current(trip)
            trip.by_tape = not (version.candidates or trip.needs_instance)
            candidates = version.tape_nodes if trip.by_tape else version.candidates
            snapshot = routing.Snapshot(
                candidates,
                self._nodes.in_flight(candidates, table.addresses),
                frozenset(trip.excluded),
                trip.sequence,
                trip.bond.home if trip.bond is not None else "",
            )
            now = self._clock.monotonic()
            choice, self._routing = routing.decide(snapshot, self._routing, self._routing_settings, now)
            if choice.lost and trip.bond is not None:
                raise sequences.lost(trip.bond, choice.reason)
            node_id = choice.node_id
            verdict, self._admission = admission.decide(
                admission.Snapshot(trip.deadline - now, node_id is not None, self._held),
                self._admission,
                self._admission_settings,
                now,
            )
            self._refuse(trip, verdict)
            if node_id is not None:
                self._note_route(trip, version, node_id, choice.reason)
                if trip.bond is not None:
                    self._sequences.sent(trip.bond, node_id)
                return node_id, table.addresses[node_id]
            await self._hold(trip, version, verdict.reason)

    @staticmethod
    def _note_route(trip: _Trip, version: Version, node_id: str, reason: str) -> None:
        span = telemetry.current()
        if span.is_recording():
            span.set_attributes(
                {
                    "function": version.function,
                    "version": version.number,
                    "request_id": trip.request_id,
                    "node": node_id,
                    "route.reason": reason,
                }
            )

    def _current(self, trip: _Trip) -> Version:
        """The version of the request as the table has it now. Raises NotFound where it is gone."""
        version = self._routes.table.version(trip.version.function, trip.version.number)
        if version.version_id != trip.version.version_id:
            raise NotFound(
                "FUNCTION_NOT_FOUND",
                f"Request for unknown model: '{version.function}' is not found; it was replaced meanwhile",
                function=version.function,
            )
        return version

    def _refuse(self, trip: _Trip, decision: admission.Decision) -> None:
        function = trip.version.function
        if decision.verdict is admission.Verdict.TOO_LATE:
            after = f"; before: {trip.refusal.message}" if trip.refusal else ""
            raise DeadlineExceeded(
                "DEADLINE_EXCEEDED", f"request for function '{function}': {decision.reason}{after}", function=function
            )
        if decision.verdict is admission.Verdict.HOLD_FULL:
            raise ResourceExhausted(
                "HOLD_FULL",
                f"function '{function}' is not ready and the gateway can hold no more requests: {decision.reason}",
                retry_after_s=decision.retry_after_s,
                function=function,
            )

    async def _hold(self, trip: _Trip, version: Version, reason: str) -> None:
        """Holds a request until its version has an instance, or until nodes that turned it away may be
        asked again."""
        began = self._clock.monotonic()
        left_s = trip.deadline - began
        self._held += 1
        metrics.HELD.set(self._held)
        try:
            with telemetry.span("hold", function=version.function, version=version.number, reason=reason):
                if version.candidates:
                    # The table still shows instances, the nodes say otherwise: one of them is out of date.
                    await self._routes.change(min(trip.pause_s, left_s))
                    trip.pause_s = min(trip.pause_s * 2, MAX_PAUSE_S)
                    trip.excluded.clear()
                else:
                    metrics.COLD_REQUESTS.labels(version.function).inc()
                    await self._wakes.wait(version, left_s - min(MAX_MARGIN_S, left_s * MARGIN_SHARE))
                    waited_s = self._clock.monotonic() - began
                    self._admission = admission.learn(self._admission, waited_s, self._admission_settings)
        finally:
            self._held -= 1
            metrics.HELD.set(self._held)
            trip.held_s += self._clock.monotonic() - began

    async def wake(self, function: str, number: str, timeout_s: float) -> None:
        """Returns when a version of the function ("" is the active one) has a ready instance. Raises as a held
        request does."""
        deadline = self._clock.monotonic() + timeout_s
        version = self._routes.loaded_table().version(function, number)
        trip = _Trip(version, "", 0, self._clock.monotonic(), deadline)
        while not (version := self._current(trip)).candidates:
            left_s = deadline - self._clock.monotonic()
            decision, self._admission = admission.decide(
                admission.Snapshot(left_s, False, self._held), self._admission, self._admission_settings, left_s
            )
            self._refuse(trip, decision)
            await self._hold(trip, version, decision.reason)

    def _turned_away(self, trip: _Trip, node_id: str, error: NotExecuted) -> None:
        """Takes note of a node that did not execute the request; raises after too many of them."""
        metrics.REROUTED.labels(error.reason).inc()
        trip.refusal = error
        if trip.by_tape:
            # Nothing has run: no tape answers it there, and an instance is woken for it.
            trip.needs_instance = True
            return
        trip.excluded.add(node_id)
        if trip.attempts >= MAX_ATTEMPTS:
            raise Unavailable(
                error.reason,
                f"no node has executed the request for function '{trip.version.function}' in {trip.attempts} "
                f"attempts; the last, {node_id}: {error.message}",
                retry_after_s=RETRY_AFTER_S,
                function=trip.version.function,
                node=node_id,
            )

    def _explained(self, error: RouseError, trip: _Trip, node_id: str) -> RouseError:
        """The node's error with the names of function and node."""
        if trip.bond is not None:
            error = self._sequences.explained(trip.bond, error)
        # Without any name in it, it is the link's own: the deadline passed before the node said anything.
        unsaid = isinstance(error, DeadlineExceeded) and not error.metadata
        error.metadata.setdefault("function", trip.version.function)
        error.metadata.setdefault("node", node_id)
        if unsaid:
            waited_s = self._clock.monotonic() - trip.started
            explained = DeadlineExceeded(
                error.reason,
                f"function '{trip.version.function}' did not answer on node {node_id} before the deadline, "
                f"after {waited_s:.3g} s",
            )
            explained.metadata = error.metadata
            return explained
        return error

    def _answer(self, trip: _Trip, node_id: str, answer: Buffer) -> Answer:
        try:
            rest, outputs = split_bytes(answer, node.InferResponse.OUTPUTS_FIELD_NUMBER)
            response = node.InferResponse.FromString(rest)
            tensors = wire.parse_batch(outputs)
        except DecodeError as error:
            raise Internal(
                "BAD_ANSWER",
                f"node {node_id} answered the request for function '{trip.version.function}' with what is no "
                f"NodeService.InferResponse: {error}",
                function=trip.version.function,
                node=node_id,
            ) from None
        if trip.bond is not None:
            self._sequences.answered(trip.bond)
        timings = response.timings
        timings.held_ms = trip.held_s * 1000
        timings.total_ms = (self._clock.monotonic() - trip.started) * 1000
        return Answer(trip.version, tensors, timings, trip.request_id, node_id, response.device)


def _message(trip: _Trip, call: Call) -> list[Buffer]:
    """Parts of the node.InferRequest: messages joined are one message, so what is the same for every request of
    the version is serialised once, and tensors stay where they are."""
    own = node.InferRequest(
        request_id=trip.request_id,
        output_names=call.output_names,
        tenant=call.tenant,
        tenant_weight=call.tenant_weight,
        options=call.options,
        rows=trip.rows,
    ).SerializeToString()
    inputs = wire.tensor_parts(call.inputs, wire.BATCH_TENSORS)
    return [trip.version.head, own, *wire.bytes_field(node.InferRequest.INPUTS_FIELD_NUMBER, inputs)]
