"""The executors of the node: instances that run functions, each behind a Unix socket of its own.

Whether a request may have run decides whether it may be sent again. gRPC's status UNAVAILABLE alone does
not say so: it stands for a connection that was refused and for one that broke after the request was sent.
So a request is sent only over a channel that is READY. Where the channel does not become ready, nothing
was sent, and the request may go elsewhere. Once it was ready, UNAVAILABLE without our ErrorInfo means that
the request may have run, and it is not sent again. With our ErrorInfo it is the executor itself that
answered, and what the reason says holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rouse_common.clock import Clock
from rouse_common.errors import DeadlineExceeded, Internal, RouseError, Unavailable
from rouse_common.rpc import Channels, call
from rouse_contracts import device as contract
from rouse_contracts import node, wire
from rouse_contracts.wire import Buffer
from rouse_node_router.adapters.devices import Lease
from rouse_node_router.adapters.reach import connected

# A Unix socket answers at once or never.
CONNECT_S = 1.0
EXECUTE = "/rouse.device.v1.ExecutorService/Execute"
NOTHING_RAN = ("STALE_LEASE", "EXECUTOR_BUSY")
LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


class NotExecuted(Exception):
    """The executor did not take the request; it may be sent again under another lease.

    Attributes:
        reason: UPPER_SNAKE_CASE.
        suspect: whether gpu-server should make sure of the executor before it uses it again.
    """

    def __init__(self, reason: str, message: str, *, suspect: bool) -> None:
        super().__init__(message)
        self.reason, self.suspect = reason, suspect


@dataclass(eq=False)
class Connection:
    """The channel to one executor, shared by all requests to it; `execute` takes and gives bytes."""

    channel: grpc.aio.Channel
    execute: Any
    users: int = 0
    used_at: float = 0.0
    broken: bool = False


class Executors:
    """Connections to executors; one that is gone is forgotten."""

    def __init__(self, max_message_bytes: int, clock: Clock) -> None:
        self._channels = Channels(max_message_bytes)
        self._clock = clock
        self._open: dict[str, Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def execute(
        self, lease: Lease, request: node.InferRequest, inputs: Buffer, timeout_s: float
    ) -> tuple[Buffer, float]:
        """Runs the request under the lease; its outputs, and the milliseconds that the device worked.

        Raises NotExecuted; Unavailable EXECUTOR_LOST where it may have run; what Execute documents.
        """
        address = lease.executor_address
        connection = self._connection(address)
        connection.users += 1
        try:
            if not await connected(connection.channel, min(timeout_s, CONNECT_S), patient=False):
                connection.broken = True
                raise NotExecuted("EXECUTOR_UNREACHABLE", f"no connection to the executor at {address}", suspect=True)
            head = contract.ExecuteRequest(
                lease_id=lease.lease_id, request_id=request.request_id, output_names=request.output_names
            )
            message = wire.join(head.SerializeToString(), contract.ExecuteRequest.INPUTS_FIELD_NUMBER, inputs)
            try:
                answer: bytes = await call(connection.execute, message, timeout_s=timeout_s)
            except RouseError as error:
                connection.broken = _is_lost(error)
                raise _typed(error, request, lease) from None
            return _parsed(answer, request, lease)
        finally:
            connection.users -= 1
            connection.used_at = self._clock.monotonic()
            if connection.broken and not connection.users:
                await self._forget(address)

    async def forget_unused(self, idle_s: float) -> None:
        """Closes connections that were not used for `idle_s` seconds, and those whose executor went away."""
        before = self._clock.monotonic() - idle_s
        for address, connection in list(self._open.items()):
            gone = connection.channel.get_state() is not grpc.ChannelConnectivity.READY
            if not connection.users and (gone or connection.used_at <= before):
                await self._forget(address)

    async def close(self) -> None:
        self._open.clear()
        await self._channels.close()

    def _connection(self, address: str) -> Connection:
        connection = self._open.get(address)
        if connection is None:
            channel = self._channels.get(address)
            connection = self._open[address] = Connection(channel, channel.unary_unary(EXECUTE))
        return connection

    async def _forget(self, address: str) -> None:
        del self._open[address]
        await self._channels.forget(address)


def _parsed(answer: bytes, request: node.InferRequest, lease: Lease) -> tuple[Buffer, float]:
    """Raises Internal BAD_ANSWER."""
    try:
        rest, outputs = wire.split_bytes(answer, contract.ExecuteResponse.OUTPUTS_FIELD_NUMBER)
        return outputs, contract.ExecuteResponse.FromString(rest).device_ms
    except DecodeError as error:
        raise Internal(
            "BAD_ANSWER",
            f"the executor of function '{request.function}' answered with what is no ExecuteResponse: {error}",
            function=request.function,
            device=lease.device,
        ) from None


def _is_lost(error: RouseError) -> bool:
    return error.code in LOST and error.reason == error.code.name


def _typed(error: RouseError, request: node.InferRequest, lease: Lease) -> Exception:
    function, version, device = request.function, request.version_id, lease.device
    if error.reason in NOTHING_RAN:
        return NotExecuted(error.reason, str(error), suspect=error.reason == "EXECUTOR_BUSY")
    if _is_lost(error):
        message = (
            f"the executor of function '{function}' went away while it had the request, which may have run; "
            f"send it again if running twice does no harm ({error})"
        )
        return Unavailable("EXECUTOR_LOST", message, function=function, version=version, device=device)
    if isinstance(error, Unavailable):
        # It answered, with our ErrorInfo: it refused the request, and nothing ran.
        return NotExecuted(error.reason, str(error), suspect=False)
    if isinstance(error, DeadlineExceeded):
        message = f"function '{function}' did not answer within the deadline on device '{device}'"
        return DeadlineExceeded("DEADLINE_EXCEEDED", message, function=function, version=version, device=device)
    return error
