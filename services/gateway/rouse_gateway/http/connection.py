"""A connection: uvicorn's, within bounds. Slow, stalled and endless clients are cut; what is no HTTP gets JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rouse_common.errors import InvalidArgument, ResourceExhausted, RouseError, Unavailable
from rouse_gateway.http.errors import bad_request, body_of, slow_request, status_of
from rouse_gateway.http.limits import RETRY_AFTER_S, Limits

# In the scope of a request: its connection.
CONNECTION = "rouse.connection"


class Connection(HttpToolsProtocol):
    """One client's connection. `working` is the task that answers it now, which ends when the client leaves."""

    def __init__(self, limits: Limits, **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self.working: asyncio.Task[Any] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_headers = True
        self._refusal: RouseError | None = None

    # ---- The transport's side -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            self._refuse(
                Unavailable(
                    "TOO_MANY_CONNECTIONS",
                    f"{self._limits.connections} connections are open already; try again soon",
                    retry_after_s=RETRY_AFTER_S,
                )
            )
            return
        self._deadline = self.loop.call_later(self._limits.header_s, self._too_slow)

    def connection_lost(self, error: Exception | None) -> None:
        self._cancel_timers()
        super().connection_lost(error)
        if self.working is not None:
            self.working.cancel()

    def data_received(self, data: bytes) -> None:
        if self.parser is None or self.transport.is_closing():
            return
        super().data_received(data)
        if not self._in_headers:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif self._header_bytes and self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self._limits.header_s, self._too_slow)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._limits.stalled_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # it does not even read
        else:
            super().timeout_keep_alive_handler()

    # ---- The parser's side ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        self._in_headers, self._header_bytes = True, 1

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if len(self.headers) >= self._limits.headers:
            self._fail(_headers_too_large(f"more than {self._limits.headers} headers"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            # Its body would be taken for the other protocol's bytes.
            self._fail(bad_request("HTTP/1.1 is all that is served; send no Upgrade, and no CONNECT", "NO_UPGRADE"))
        self._in_headers, self._header_bytes = False, 0
        super().on_headers_complete()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._limits.header_bytes:
            self._fail(_headers_too_large(f"more than {self._limits.header_bytes} bytes of headers"))

    def _fail(self, error: RouseError) -> None:
        """Ends parsing; what is raised in a callback comes out of the parser as one of its own errors."""
        self._refusal = error
        raise error

    # ---- Answers without a request --------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or _no_http())

    def _too_slow(self) -> None:
        self._deadline = None
        if self._header_bytes == 0 and self.cycle is None:
            self.transport.close()  # it never said anything
        else:
            self._refuse(slow_request(self._limits.header_s))

    def _refuse(self, error: RouseError) -> None:
        """Answers and closes. Not while an earlier request of the connection is being answered: two answers
        would mix."""
        if self.transport.is_closing():
            return
        if self.working is None:
            body = body_of(error)
            self.transport.write(
                STATUS_LINE[status_of(error)]
                + b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
                + body
            )
        self._cancel_timers()
        self.transport.close()

    def _cancel_timers(self) -> None:
        for timer in (self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        self._deadline = self._stalled = None


def make(limits: Limits) -> Callable[..., Connection]:
    """What uvicorn makes a connection with."""

    def connection(**given: Any) -> Connection:
        return Connection(limits, **given)

    return connection


def _headers_too_large(text: str) -> ResourceExhausted:
    return ResourceExhausted("HEADERS_TOO_LARGE", f"the request has {text}; send less")


def _no_http() -> InvalidArgument:
    return bad_request("what was sent is no HTTP/1.1 request", "MALFORMED_HTTP")
