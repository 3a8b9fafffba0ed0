"""Calls to other services: one channel an address, a deadline on every call, typed errors, traces."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from rouse_common import telemetry
from rouse_common.errors import DeadlineExceeded, RouseError, Unavailable, from_rpc_error
from rouse_common.rpc.options import channel_options
from rouse_common.tls import MeshTls


class Channels:
    """One open channel an address, made on first use.

    The number of addresses is bounded by what a mesh has; `forget` drops one that is gone.

    Args:
        tls: how this process proves itself and whom it believes; None: plain. Unix sockets are plain always.
    """

    MAX = 4096

    def __init__(self, max_message_bytes: int, tls: MeshTls | None = None) -> None:
        self._options = channel_options(max_message_bytes)
        self._tls = tls
        self._channels: dict[str, grpc.aio.Channel] = {}

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to host:port or unix:PATH. Raises Unavailable past MAX addresses."""
        channel = self._channels.get(address)
        if channel is None:
            if len(self._channels) >= self.MAX:
                raise Unavailable("TOO_MANY_CHANNELS", f"{self.MAX} channels are open already; cannot reach {address}")
            channel = self._channels[address] = self._open(address)
        return channel

    def _open(self, address: str) -> grpc.aio.Channel:
        if self._tls is None or address.startswith("unix:"):
            return grpc.aio.insecure_channel(address, options=self._options)
        return grpc.aio.secure_channel(address, self._tls.channel_credentials(), options=self._options)

    async def forget(self, address: str) -> None:
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        for address in list(self._channels):
            await self.forget(address)


async def call(method: Any, request: Any, *, timeout_s: float, wait_for_ready: bool = False) -> Any:
    """Calls a unary method of a stub, in the current trace, within `timeout_s`.

    With `wait_for_ready`, a neighbour that is restarting is waited for within the deadline instead of
    failing at once. Raises the RouseError that the answer stands for. Cancelling it cancels the call.
    """
    if timeout_s <= 0:  # which gRPC takes for no deadline at all
        raise DeadlineExceeded("DEADLINE_EXCEEDED", "no time was left to make the call")
    try:
        return await method(request, timeout=timeout_s, metadata=telemetry.inject(), wait_for_ready=wait_for_ready)
    except grpc.aio.AioRpcError as error:
        typed: RouseError = from_rpc_error(error)
        if typed.code is grpc.StatusCode.CANCELLED and typed.reason == typed.code.name:
            # Nobody here cancelled it, and no handler said so: the server stopped.
            typed = Unavailable("UNAVAILABLE", "the server stopped while the call was under way")
        raise typed from None
    except asyncio.CancelledError:
        # gRPC raises it for a channel that is closed under a call, too, where nobody cancelled the caller.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise Unavailable("UNAVAILABLE", "the channel was closed while the call was under way") from None
    except grpc.aio.UsageError as error:
        raise Unavailable("UNAVAILABLE", f"the channel is closed: {error}") from None
