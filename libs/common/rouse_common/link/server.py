"""The serving end of links."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

from rouse_common import telemetry
from rouse_common.errors import DeadlineExceeded, Internal, ResourceExhausted, RouseError, Unavailable, to_status
from rouse_common.link.connection import Connection
from rouse_common.link.frames import CREDIT, Buffer, Frame, Kind, ProtocolError, read_call_head
from rouse_common.link.sockets import remove
from rouse_common.observed import Observed

LOG = logging.getLogger(__name__)

MAX_CONNECTIONS = 1024
# Responses of one call that may be under way unread.
WINDOW = 16
BUSY_RETRY_S = 0.1
HELLO_S = 5.0


class Incoming:
    """One call that is being served.

    Attributes:
        deadline: on the event loop's clock, seconds.
    """

    __slots__ = ("_connection", "_credit", "_expired", "_loop", "_more", "_number", "_task", "deadline")

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection, number: int, timeout_s: float) -> None:
        self._loop, self._connection, self._number = loop, connection, number
        self.deadline = loop.time() + timeout_s
        self._task: asyncio.Task[None]
        self._credit = WINDOW
        self._more: asyncio.Event | None = None
        self._expired = False

    @property
    def remaining_s(self) -> float:
        """Seconds until the caller's deadline."""
        return max(0.0, self.deadline - self._loop.time())

    async def send(self, parts: Sequence[Buffer]) -> None:
        """Sends one response, more of which may follow; waits while the caller does not read what it got."""
        while self._credit <= 0:
            self._more = asyncio.Event()
            await self._more.wait()
        self._credit -= 1
        self._connection.send(Kind.MESSAGE, self._number, parts=parts)
        if self._connection.full:
            await self._connection.drained()

    def _allow(self, count: int) -> None:
        """The caller read so many responses more."""
        self._credit = min(self._credit + count, WINDOW)
        if self._more is not None:
            self._more.set()

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()


Unary: TypeAlias = Callable[[Buffer, Incoming], Awaitable[Sequence[Buffer] | None]]
Streaming: TypeAlias = Callable[[Buffer, Incoming], AsyncIterator[Sequence[Buffer]]]


class LinkServer:
    """Serves methods over links. A caller's deadline and its CANCEL cancel the handler.

    Args:
        listen: host:port (port 0 takes a free one) or unix:PATH.
        max_message_bytes: largest message in either direction.
        max_concurrent: calls at work at once; further ones are refused with RESOURCE_EXHAUSTED TOO_MANY_CALLS.
        tls: context that TCP connections must pass; None: plain. Unix sockets are plain always.
    """

    def __init__(
        self,
        listen: str,
        *,
        max_message_bytes: int,
        max_concurrent: int = 10_000,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listen, self._max_bytes, self._max_concurrent, self._tls = listen, max_message_bytes, max_concurrent, tls
        self._handlers: dict[bytes, tuple[str, bool, Any]] = {}
        self._connections: dict[Connection, dict[int, Incoming]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._stopping = False
        self.address = listen

    def add(self, method: str, handler: Unary | Streaming) -> None:
        """Adds a handler.

        Args:
            method: "/package.Service/Method".
            handler: called with the request's bytes; gives each response as parts of one message. A coroutine
                function returns the last one, or None where all were sent by `Incoming.send`; an async generator
                function yields them.
        """
        self._handlers[method.encode()] = (method, inspect.isasyncgenfunction(handler), handler)

    async def start(self) -> None:
        """Listens; sets `address`. Raises OSError where the address is taken."""
        self._loop = asyncio.get_running_loop()
        if self._listen.startswith("unix:"):
            path = self._listen.removeprefix("unix:")
            remove(path)
            self._server = await self._loop.create_unix_server(self._accept, path)
            os.chmod(path, 0o600)
            return
        host, _, port = self._listen.rpartition(":")
        self._server = await self._loop.create_server(self._accept, host.strip("[]"), int(port), ssl=self._tls)
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self, drain_s: float) -> None:
        """Accepts no more, tells callers, waits up to `drain_s` for calls under way, and closes."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.send(Kind.CLOSING, 0)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=drain_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await asyncio.gather(*[connection.finish(1.0) for connection in list(self._connections)])
        if self._listen.startswith("unix:"):
            remove(self._listen.removeprefix("unix:"))

    # ---- Frames -------------------------------------------------------------------------------

    def _accept(self) -> Connection:
        connection = Connection(self._max_bytes, self._received, self._lost)
        if len(self._connections) >= MAX_CONNECTIONS:
            LOG.warning("a link is refused: %d connections are open", len(self._connections))
            self._loop.call_soon(connection.close)
        self._connections[connection] = {}
        self._loop.call_later(HELLO_S, self._close_silent, connection)
        return connection

    def _close_silent(self, connection: Connection) -> None:
        if not connection.greeted.done():
            connection.close()

    def _received(self, connection: Connection, frame: Frame) -> None:
        calls = self._connections[connection]
        if frame.kind is Kind.CALL:
            self._begin(connection, calls, frame)
            return
        served = calls.get(frame.call)  # it may have ended meanwhile
        if frame.kind is Kind.CANCEL:
            if served is not None:
                served._task.cancel()
        elif frame.kind is Kind.CREDIT and len(frame.body) == CREDIT.size:
            if served is not None:
                served._allow(CREDIT.unpack(frame.body)[0])
        else:
            raise ProtocolError(f"a client sends no {frame.kind.name} of {len(frame.body)} bytes")

    def _begin(self, connection: Connection, calls: dict[int, Incoming], frame: Frame) -> None:
        name, timeout_s, traceparent = read_call_head(frame.head)
        handler = self._handlers.get(name)
        if frame.call in calls:
            raise ProtocolError(f"call {frame.call} is under way already")
        refusal: RouseError | None = None
        if handler is None:
            refusal = Internal("UNKNOWN_METHOD", f"{name.decode(errors='replace')} is not served over this link")
        elif self._stopping:
            refusal = Unavailable("NOT_CONNECTED", "the server stops", retry_after_s=BUSY_RETRY_S)
        elif len(self._tasks) >= self._max_concurrent:
            refusal = ResourceExhausted(
                "TOO_MANY_CALLS", f"{self._max_concurrent} calls are being served", retry_after_s=BUSY_RETRY_S
            )
        if handler is None or refusal is not None:
            assert refusal is not None
            connection.send(Kind.ERROR, frame.call, parts=(to_status(refusal),))
            return
        served = calls[frame.call] = Incoming(self._loop, connection, frame.call, timeout_s)
        served._task = self._loop.create_task(self._serve(connection, calls, frame, served, handler, traceparent))
        self._tasks.add(served._task)
        served._task.add_done_callback(self._tasks.discard)

    def _lost(self, connection: Connection) -> None:
        for served in self._connections.pop(connection, {}).values():
            served._task.cancel()

    # ---- Calls --------------------------------------------------------------------------------

    async def _serve(
        self,
        connection: Connection,
        calls: dict[int, Incoming],
        frame: Frame,
        served: Incoming,
        handler: tuple[str, bool, Any],
        traceparent: str,
    ) -> None:
        method, streaming, serve = handler
        call = frame.call
        observed = Observed("link", method, telemetry.from_traceparent(traceparent))
        timer = self._loop.call_at(served.deadline, served._expire)
        error: BaseException | None = None
        try:
            if streaming:
                await _stream(served, serve(frame.body, served))
                connection.send(Kind.END, call)
            else:
                last = await serve(frame.body, served)
                connection.send(Kind.END if last is None else Kind.LAST, call, parts=last or ())
            if connection.full:
                await connection.drained()
        except asyncio.CancelledError as cancelled:
            # The end of the call's own task: by its deadline, by its caller, or by our stop.
            error = DeadlineExceeded("DEADLINE_EXCEEDED", f"{method} ran out of time") if served._expired else cancelled
            if self._stopping and not served._expired:
                error = Unavailable("UNAVAILABLE", "the server stopped while the call was under way")
        except Exception as raised:  # noqa: BLE001 - whatever a handler raises is answered typed, and logged
            error = raised
        finally:
            timer.cancel()
            calls.pop(call, None)
        typed = observed.end(error)
        if typed is not None:
            connection.send(Kind.ERROR, call, parts=(to_status(typed),))


async def _stream(served: Incoming, responses: AsyncGenerator[Sequence[Buffer], None]) -> None:
    async with aclosing(responses):
        async for parts in responses:
            await served.send(parts)
