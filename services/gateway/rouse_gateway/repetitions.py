"""A request with an idempotency key runs once, however often it comes; a repetition gets the first one's answer.

What is known of a key is in Redis, for all gateways. Whoever reserves it runs the request to its end, even where
its client goes away, and keeps the answer before it answers. Is the gateway killed meanwhile, nobody knows
whether the request ran: its repetitions are told so and are not run. What surely did not run is forgotten, so
that a repetition runs. Without Redis a request with a key is refused: it might run twice.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
from collections.abc import Awaitable, Callable

import grpc
from google.protobuf.message import DecodeError

from rouse_cache import Answers, Known, Name, Reservation
from rouse_common.clock import Clock
from rouse_common.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    RouseError,
    Unavailable,
    from_status,
    to_status,
)
from rouse_contracts import functions
from rouse_contracts.wire import split
from rouse_gateway import metrics, wire
from rouse_gateway.asked import Answer, Call
from rouse_gateway.state import Routes, Version

LOG = logging.getLogger(__name__)
MAX_KEY_CHARS = 256
MAX_RUNNING = 10_000
FIRST_PAUSE_S = 0.01
MAX_PAUSE_S = 0.25
# Beyond the deadline of who runs a request, for its answer to be written down.
LEASE_MARGIN_S = 5.0
RETRY_AFTER_S = 5.0
# More bytes are hashed beside the event loop.
HASHED_HERE = 1 << 20
OUTPUTS = functions.InferResponse.OUTPUTS_FIELD_NUMBER
ANSWER, ERROR = b"\x01", b"\x02"

Run = Callable[[Call], Awaitable[Answer]]
# Refused before anything was executed.
NOT_RUN_CODES = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
NOT_RUN_REASONS = frozenset({"NO_INSTANCE", "NODE_UNREACHABLE", "NOT_CONNECTED", "NO_NODE", "START_FAILED", "STOPPING"})


def may_have_run(error: RouseError) -> bool:
    """Whether the request behind an error may have been executed. An error that names no node was never sent."""
    if error.code in NOT_RUN_CODES:
        return False
    if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return "node" in error.metadata and error.reason not in NOT_RUN_REASONS
    return True


class Repetitions:
    """Args:
    tasks: owns the requests that are run; see `close`.
    """

    def __init__(self, answers: Answers, routes: Routes, tasks: asyncio.TaskGroup, clock: Clock) -> None:
        self._answers, self._routes, self._tasks, self._clock = answers, routes, tasks, clock
        self._running: set[asyncio.Task[Answer | RouseError]] = set()

    async def infer(self, call: Call, run: Run) -> Answer:
        """Has a call run, or answers it as its first one was answered.

        Raises what the first one raised; InvalidArgument BAD_IDEMPOTENCY_KEY | IDEMPOTENCY_KEY_REUSED,
        FailedPrecondition ANSWER_NOT_KEPT | OUTCOME_UNKNOWN, ResourceExhausted TOO_MANY_ANSWERS, Unavailable
        CACHE_UNAVAILABLE, DeadlineExceeded.
        """
        if len(call.idempotency_key) > MAX_KEY_CHARS:
            raise InvalidArgument(
                "BAD_IDEMPOTENCY_KEY",
                f"the idempotency key has {len(call.idempotency_key)} characters, want {MAX_KEY_CHARS} at most",
            )
        deadline = self._clock.monotonic() + call.timeout_s
        name = Name(call.tenant, call.function, call.idempotency_key)
        heavy = sum(len(tensor.data) for tensor in call.inputs) > HASHED_HERE
        digest = await asyncio.to_thread(digest_of, call) if heavy else digest_of(call)
        pause_s = FIRST_PAUSE_S
        while True:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                raise DeadlineExceeded(
                    "DEADLINE_EXCEEDED", "the first request with this idempotency key did not end before the deadline"
                )
            found = await self._answers.reserve(name, digest, left_s + LEASE_MARGIN_S)
            if found.known is Known.NEW:
                return await self._first(call._replace(timeout_s=left_s), run, name, found.owner)
            if found.known is not Known.RUNNING:
                metrics.REPEATED.labels(found.known.name).inc()
                return self._known(found, call)
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def close(self) -> None:
        """Stops what is still being run; its outcome is unknown then."""
        for task in self._running:
            task.cancel()

    async def _first(self, call: Call, run: Run, name: Name, owner: str) -> Answer:
        if len(self._running) >= MAX_RUNNING:
            await self._answers.forget(name, owner)
            raise ResourceExhausted(
                "TOO_MANY_REQUESTS", f"{MAX_RUNNING} requests with idempotency keys are running", retry_after_s=1.0
            )
        task = self._tasks.create_task(self._run(call, run, name, owner))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # A client that goes away comes again for its answer.
        outcome = await asyncio.shield(task)
        if isinstance(outcome, RouseError):
            raise outcome
        return outcome

    async def _run(self, call: Call, run: Run, name: Name, owner: str) -> Answer | RouseError:
        """Runs a request and writes down what became of it."""
        outcome: Answer | RouseError
        try:
            outcome = await run(call)
        except RouseError as error:
            outcome = error
        except Exception as error:
            LOG.error("a request with an idempotency key failed unexpectedly", exc_info=error)
            outcome = Internal("INTERNAL_ERROR", "the request failed unexpectedly; the gateway's log has the details")
        try:
            if isinstance(outcome, RouseError) and not may_have_run(outcome):
                await self._answers.forget(name, owner)
            else:
                await self._answers.keep(name, owner, pack(outcome))
        except Unavailable as error:
            LOG.warning("an answer is not kept, a repetition will be refused function=%s: %s", call.function, error)
        return outcome

    def _known(self, found: Reservation, call: Call) -> Answer:
        if found.known is Known.DONE:
            # The function was looked up before; only its versions may be others by now.
            route = self._routes.table.route(call.function)
            return unpack(found.answer, route.versions[""], route.versions.get)
        error = _refusal(found.known)
        error.metadata = {"function": call.function, "idempotency_key": call.idempotency_key}
        raise error


def _refusal(known: Known) -> RouseError:
    if known is Known.OTHER:
        return InvalidArgument(
            "IDEMPOTENCY_KEY_REUSED",
            "this idempotency key was used for a request with other inputs; use a new key for every request",
        )
    if known is Known.LARGE:
        return FailedPrecondition(
            "ANSWER_NOT_KEPT", "this request has run, and its answer was too large to be kept for a repetition"
        )
    if known is Known.FULL:
        return ResourceExhausted(
            "TOO_MANY_ANSWERS", "the answers kept for this tenant's idempotency keys take all the room they may",
            retry_after_s=RETRY_AFTER_S,
        )  # fmt: skip
    return FailedPrecondition(
        "OUTCOME_UNKNOWN",
        "this request may have run: the gateway that had it went away; use a new idempotency key to run it again",
    )


def digest_of(call: Call) -> str:
    """What is asked, as a digest: version, outputs wanted, inputs in the order of their names."""
    hashed = hashlib.sha256()

    def add(part: object) -> None:
        text = str(part).encode(errors="replace")
        hashed.update(b"%d:" % len(text) + text)

    add(call.number)
    add(list(call.output_names))
    for tensor in sorted(call.inputs, key=lambda tensor: tensor.name):
        add((tensor.name, tensor.datatype, tuple(tensor.shape), len(tensor.data)))
        hashed.update(tensor.data)
    return hashed.hexdigest()


def pack(outcome: Answer | RouseError) -> bytes:
    """An answer or an error, to be kept."""
    if isinstance(outcome, RouseError):
        return ERROR + to_status(outcome)
    head = functions.InferResponse(
        request_id=outcome.request_id,
        version=outcome.version.number,
        timings=outcome.timings,
        node_id=outcome.node_id,
        device=outcome.device,
    ).SerializeToString()
    return b"".join([ANSWER, head, *wire.tensor_parts(outcome.outputs, OUTPUTS)])


def unpack(kept: bytes, active: Version, versions: Callable[[str], Version | None]) -> Answer:
    """The answer that `pack` wrote. Raises the error that it wrote; Internal BAD_ANSWER.

    Args:
        active: the function's active version, where that of the answer is gone.
    """
    try:
        if kept[:1] == ERROR:
            raise from_status(kept[1:])
        if kept[:1] != ANSWER:
            raise DecodeError("it is neither an answer nor an error")
        head, outputs = split(kept[1:], OUTPUTS)
        response = functions.InferResponse.FromString(bytes(head))
        tensors = [wire.parse_tensor(output) for output in outputs]
    except DecodeError as error:
        raise Internal("BAD_ANSWER", f"the answer that was kept for this request is damaged: {error}") from None
    version = versions(response.version) or dataclasses.replace(active, number=response.version)
    return Answer(version, tensors, response.timings, response.request_id, response.node_id, response.device)
