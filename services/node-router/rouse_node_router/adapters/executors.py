"""The executors of the node: instances that run functions, each with a link at a Unix socket of its own.

Whether a request may have run decides whether it may be sent again. A link tells: NOT_CONNECTED means that
nothing was sent, so the request may go elsewhere; LINK_LOST that it may have run, and it is not sent again.
Where the executor itself answered, what its reason says holds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from google.protobuf.message import DecodeError

from rouse_common import telemetry
from rouse_common.errors import DeadlineExceeded, Internal, RouseError, Unavailable
from rouse_common.link import Links
from rouse_contracts import device as contract
from rouse_contracts import node, views, wire
from rouse_contracts.links import EXECUTE, executor_link
from rouse_contracts.wire import Buffer
from rouse_node_router import metrics
from rouse_node_router.adapters.devices import Lease, Tapes

METHOD = EXECUTE.encode()
NOTHING_RAN = ("STALE_LEASE", "EXECUTOR_BUSY")
# The link broke, or the executor stopped before it answered; or, of an instance, the one that it computes in did.
LOST = ("LINK_LOST", "UNAVAILABLE", "EXECUTOR_LOST")


class NotExecuted(Exception):
    """The executor did not take the request; it may be sent again under another lease.

    Attributes:
        reason: UPPER_SNAKE_CASE.
        suspect: whether gpu-server should make sure of the executor before it uses it again.
    """

    def __init__(self, reason: str, message: str, *, suspect: bool) -> None:
        super().__init__(message)
        self.reason, self.suspect = reason, suspect


class Executed(NamedTuple):
    """A response of an executor.

    Args:
        outputs: a serialised TensorBatch; empty in the last response of a decoupled function.
        device_ms, input_ms, output_ms: as in device.ExecuteResponse.
        replayed: whether a tape gave it.
    """

    outputs: Buffer
    device_ms: float
    input_ms: float
    output_ms: float
    replayed: bool = False


class Executors:
    """Has requests executed."""

    def __init__(self, links: Links) -> None:
        self._links = links

    async def execute(
        self, lease: Lease, request: node.InferRequest, inputs: Sequence[Buffer], timeout_s: float
    ) -> Executed:
        """Runs the request of an ordinary function under the lease; `inputs` are parts of a serialised TensorBatch.

        Raises NotExecuted; Unavailable EXECUTOR_LOST where it may have run; what Execute documents.
        """
        address = executor_link(lease.executor_address)
        try:
            answer = await self._links.call(address, METHOD, _message(lease.lease_id, request, inputs), timeout_s)
        except RouseError as error:
            raise _typed(error, request, lease) from None
        return _parsed(answer, request, lease)

    async def replay(
        self, lease: Lease, tapes: Tapes, request: node.InferRequest, inputs: Sequence[Buffer], timeout_s: float
    ) -> Executed | None:
        """Has the device's executor answer by a tape; None where it did not: nothing is left of the try then, and the
        instance may execute the request.

        Raises Unavailable EXECUTOR_LOST, DeadlineExceeded.
        """
        with telemetry.span("execute", device=lease.device, request_id=request.request_id, tape=True) as span:
            try:
                answer = await self._links.call(
                    tapes.link, METHOD, _message(tapes.lease_id, request, inputs), timeout_s
                )
            except RouseError as error:
                if isinstance(error, DeadlineExceeded) or error.reason in LOST:
                    raise _typed(error, request, lease) from None
                # It refused, or values led another way, or an operator failed: the instance says what the caller hears.
                span.update_name("replay")
                span.set_attribute("outcome", error.reason)
                metrics.REPLAYS.labels(error.reason).inc()
                return None
            executed = _parsed(answer, request, lease)._replace(replayed=True)
            span.set_attribute("device_ms", round(executed.device_ms, 3))
            metrics.REPLAYS.labels("DONE").inc()
            return executed

    async def stream(
        self, lease: Lease, request: node.InferRequest, inputs: Sequence[Buffer], timeout_s: float
    ) -> AsyncGenerator[Executed, None]:
        """The same for a decoupled function: its responses as they come. NotExecuted comes before the first only."""
        address, came = executor_link(lease.executor_address), False
        answers = self._links.stream(address, METHOD, _message(lease.lease_id, request, inputs), timeout_s)
        async with aclosing(answers):
            try:
                async for answer in answers:
                    came = True
                    yield _parsed(answer, request, lease)
            except RouseError as error:
                typed = _typed(error, request, lease)
                raise error if came and isinstance(typed, NotExecuted) else typed from None


def _message(lease_id: str, request: node.InferRequest, inputs: Sequence[Buffer]) -> Sequence[Buffer]:
    head = contract.ExecuteRequest(
        lease_id=lease_id,
        request_id=request.request_id,
        output_names=request.output_names,
        options=request.options if request.HasField("options") else None,
        rows=request.rows,
    )
    return [head.SerializeToString(), *views.bytes_field(contract.ExecuteRequest.INPUTS_FIELD_NUMBER, inputs)]


def _parsed(answer: Buffer, request: node.InferRequest, lease: Lease) -> Executed:
    """Raises Internal BAD_ANSWER."""
    try:
        rest, outputs = wire.split_bytes(answer, contract.ExecuteResponse.OUTPUTS_FIELD_NUMBER)
        head = contract.ExecuteResponse.FromString(rest)
    except DecodeError as error:
        raise Internal(
            "BAD_ANSWER",
            f"the executor of function '{request.function}' answered with what is no ExecuteResponse: {error}",
            function=request.function,
            device=lease.device,
        ) from None
    return Executed(outputs, head.device_ms, head.input_ms, head.output_ms)


def _typed(error: RouseError, request: node.InferRequest, lease: Lease) -> Exception:
    function, version, device = request.function, request.version_id, lease.device
    if error.reason in NOTHING_RAN:
        return NotExecuted(error.reason, str(error), suspect=error.reason == "EXECUTOR_BUSY")
    if not isinstance(error, Unavailable):
        if not isinstance(error, DeadlineExceeded):
            return error
        message = f"function '{function}' did not answer within the deadline on device '{device}'"
        return DeadlineExceeded("DEADLINE_EXCEEDED", message, function=function, version=version, device=device)
    if error.reason in LOST:
        message = (
            f"the executor of function '{function}' went away while it had the request, which may have run; "
            f"send it again if running twice does no harm ({error})"
        )
        return Unavailable("EXECUTOR_LOST", message, function=function, version=version, device=device)
    if error.reason == "NOT_CONNECTED":
        message = f"no link to the executor at {lease.executor_address}: {error}"
        return NotExecuted("EXECUTOR_UNREACHABLE", message, suspect=True)
    # It answered: it refused the request, and nothing ran.
    return NotExecuted(error.reason, str(error), suspect=False)
