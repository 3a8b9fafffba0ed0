"""The ASGI application of the HTTP port: one request, one answer, whatever happens.

No framework stands in between: a request that is served costs a look at its path, one parse of its JSON and
two messages to the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Protocol

from opentelemetry.trace import Span, SpanKind

from rouse_common import telemetry
from rouse_common.errors import Cancelled, Internal, RouseError, Unauthenticated, Unavailable
from rouse_common.tasks import unless
from rouse_gateway import metrics
from rouse_gateway.http import compression
from rouse_gateway.http.body import Body
from rouse_gateway.http.connection import CONNECTION
from rouse_gateway.http.errors import body_of, retry_after, status_of
from rouse_gateway.http.limits import Budget, Limits
from rouse_gateway.http.messages import JSON, Reply, Request, Stream
from rouse_gateway.http.router import Route, Router

LOG = logging.getLogger(__name__)

Scope = dict[str, Any]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]

TRACE_HEADER = b"rouse-trace-id"
UNKNOWN_ROUTE = "(unknown)"
# Smaller bodies are sent as one piece.
JOINED_BYTES = 64 << 10
# Larger ones are compressed beside the event loop.
COMPRESSED_HERE = 64 << 10


class Callers(Protocol):
    """Who may call what."""

    def admit(self, headers: Mapping[bytes, bytes], route: Route, peer: str) -> None:
        """Says who a request's headers, and its peer, stand for. Raises Unauthenticated, PermissionDenied."""
        ...

    async def lost(self, headers: Mapping[bytes, bytes], route: Route) -> RouseError | None:
        """Returns once a request that was admitted would be refused, and with what; None where that cannot be."""
        ...


class RestApp:
    """Answers requests by the routes it is given.

    Args:
        callers: asked before a body is read, for open routes too, and while a stream goes out; None leaves it out.
    """

    def __init__(self, router: Router, limits: Limits, budget: Budget, callers: Callers | None) -> None:
        self._router = router
        self._limits = limits
        self._budget = budget
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope[CONNECTION]
        connection.working = asyncio.current_task()
        exchange = _Exchange(scope, send)
        body = Body(receive, exchange.headers, self._limits, self._budget)
        try:
            await self._answer(exchange, body)
        except asyncio.CancelledError:
            # The top of the task: the client is gone, which nobody is to be told, or the server stops.
            exchange.ended(Cancelled("CANCELLED", "the client closed the connection, or the gateway stops"))
            if not connection.transport.is_closing() and not exchange.started:
                stopping = Unavailable("STOPPING", "the gateway stops; send the request again", retry_after_s=1.0)
                await exchange.refuse(stopping, close=True)
        finally:
            connection.working = None
            body.release()

    async def _answer(self, exchange: _Exchange, body: Body) -> None:
        try:
            route, values = self._router.find(exchange.method, exchange.path)
            exchange.begin(route)
            if self._callers is not None:
                self._callers.admit(exchange.headers, route, exchange.peer)
            content = await body.read()
            request = Request(exchange.method, exchange.path, values, exchange.headers, content)
            reply = await route.handler(request)
            if isinstance(reply, Stream):
                async with self._while_admitted(exchange, route):
                    await exchange.stream(reply)
            else:
                await exchange.reply(reply)
            exchange.ended(None)
        except RouseError as error:
            await self._fail(exchange, body, error)
        except Exception as error:
            LOG.error("%s %s failed unexpectedly", exchange.method, exchange.route, exc_info=error)
            await self._fail(exchange, body, _internal(exchange))

    @asynccontextmanager
    async def _while_admitted(self, exchange: _Exchange, route: Route) -> AsyncIterator[None]:
        if self._callers is None:
            yield
            return
        async with unless(partial(self._callers.lost, exchange.headers, route)):
            yield

    async def _fail(self, exchange: _Exchange, body: Body, error: RouseError) -> None:
        exchange.ended(error)
        if not body.complete:
            await body.discard()
        await exchange.refuse(error, close=not body.complete)


def _internal(exchange: _Exchange) -> Internal:
    return Internal(
        "INTERNAL_ERROR", f"{exchange.method} {exchange.route} failed unexpectedly; the gateway's log has the details"
    )


class _Exchange:
    """One request and its answer on the wire, with its span and its metrics."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.peer: str = (scope.get("client") or ("unknown",))[0]
        self.started = False
        self.route = UNKNOWN_ROUTE
        self._send = send
        self._span: Span | None = None
        self._trace_id = ""
        self._status = 0
        self._began = time.perf_counter()
        self._open = True
        metrics.HTTP_IN_FLIGHT.inc()

    def begin(self, route: Route) -> None:
        """Opens the request's span, in the caller's trace where its traceparent names one."""
        self.route = route.template
        if not route.span:
            return
        traceparent = self.headers.get(b"traceparent")
        carried = {} if traceparent is None else {telemetry.TRACEPARENT: traceparent.decode("latin-1")}
        attributes = {"http.request.method": self.method, "http.route": route.template}
        # Never left: each request has a task, and with it a context, of its own.
        self._span = telemetry.enter(route.span, SpanKind.SERVER, telemetry.extract(carried), attributes)
        self._trace_id = telemetry.current_trace_id()

    def ended(self, error: RouseError | None) -> None:
        """Closes span and metrics, once."""
        if not self._open:
            return
        self._open = False
        status = self._status or (status_of(error) if error is not None else 200)
        if self._span is not None:
            self._span.set_attribute("http.response.status_code", status)
            if error is not None:
                telemetry.fail(self._span, error)
            self._span.end()
        metrics.HTTP_IN_FLIGHT.dec()
        metrics.HTTP_LATENCY.labels(self.route).observe(time.perf_counter() - self._began)
        metrics.HTTP_REQUESTS.labels(self.route, str(status)).inc()

    async def refuse(self, error: RouseError, *, close: bool) -> None:
        """Answers an error; where the answer is under way already, there is nothing more to say."""
        if self.started:
            return
        headers = [(b"connection", b"close")] if close else []
        after = retry_after(error)
        if after is not None:
            headers.append((b"retry-after", after))
        if error.reason == "METHOD_NOT_ALLOWED":
            headers.append((b"allow", error.metadata["allowed"].encode()))
        if isinstance(error, Unauthenticated):
            headers.append((b"www-authenticate", b"Bearer"))
        await self.reply(Reply([body_of(error)], status_of(error), JSON, headers))

    async def reply(self, reply: Reply) -> None:
        parts = [part for part in reply.parts if len(part)]
        size = sum(map(len, parts))
        headers = [(b"content-type", reply.content_type), *reply.headers]
        encoding = compression.accepted(self.headers) if reply.compressible else ""
        if encoding and size >= compression.MIN_BYTES:
            whole = b"".join(parts)
            if size <= COMPRESSED_HERE:
                whole = compression.deflate(whole, encoding)
            else:
                whole = await asyncio.to_thread(compression.deflate, whole, encoding)
            parts, size = [whole], len(whole)
            headers += [(b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding")]
        elif size <= JOINED_BYTES:
            parts = [b"".join(parts)]
        headers.append((b"content-length", str(size).encode()))
        await self._start(reply.status, headers)
        for part in parts[:-1]:
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await self._send({"type": "http.response.body", "body": parts[-1]})

    async def stream(self, reply: Stream) -> None:
        """Writes items as they come. An error before the first one is raised: it has a status of its own."""
        async with aclosing(reply.items) as items:
            async for item in items:
                if not self.started:
                    await self._start(200, [(b"content-type", reply.content_type), (b"cache-control", b"no-cache")])
                await self._send({"type": "http.response.body", "body": item, "more_body": True})
        if not self.started:
            await self._start(200, [(b"content-type", reply.content_type), (b"cache-control", b"no-cache")])
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if self._trace_id:
            headers.append((TRACE_HEADER, self._trace_id.encode()))
        self.started, self._status = True, status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
