"""A request's body as it arrives: within a size, within a time, inflated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rouse_common.errors import Cancelled
from rouse_gateway.http import compression
from rouse_gateway.http.errors import slow_request, too_large
from rouse_gateway.http.limits import Budget, Limits

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
# Larger ones are inflated beside the event loop: this much may become a thousand times as much.
INFLATED_HERE = 1 << 10
# How long a client that is refused may go on sending, so that it reads why.
REFUSED_S = 2.0


class Body:
    """Reads one body. What it holds is taken from the budget until `release`."""

    def __init__(self, receive: Receive, headers: Mapping[bytes, bytes], limits: Limits, budget: Budget) -> None:
        self._receive = receive
        self._headers = headers
        self._limits = limits
        self._budget = budget
        self._taken = 0
        self.complete = False

    async def read(self) -> bytes:
        """The whole body. Raises ResourceExhausted BODY_TOO_LARGE or BODIES_FULL, DeadlineExceeded
        SLOW_REQUEST, InvalidArgument and Unimplemented for encodings."""
        length = self._headers.get(b"content-length")
        if length is not None:
            # The parser has checked that it is a number; what it announces is what may be held.
            self._take(int(length))
        body = await self._next()
        if not self.complete:
            size = self._taken if length is not None else self._limits.body_bytes
            limit_s = self._limits.body_s + size / self._limits.bytes_per_s
            try:
                async with asyncio.timeout(limit_s):
                    body = await self._rest(body)
            except TimeoutError:
                raise slow_request(limit_s) from None
        encoding = self._headers.get(b"content-encoding")
        return await self._inflated(body, encoding.decode("latin-1")) if encoding else body

    def release(self) -> None:
        self._budget.give(self._taken)
        self._taken = 0

    async def discard(self) -> None:
        """Takes what a refused client still sends, for a while: one that only writes would never read the
        refusal."""
        if b"expect" in self._headers:
            return  # it waits for leave to send
        try:
            async with asyncio.timeout(REFUSED_S):
                while not self.complete:
                    await self._next()
        except (TimeoutError, Cancelled):
            return

    async def _rest(self, first: bytes) -> bytes:
        parts, size = [first], len(first)
        while not self.complete:
            part = await self._next()
            parts.append(part)
            size += len(part)
            if size > self._taken:
                self._take(max(size, min(2 * size, self._limits.body_bytes)))
        return b"".join(parts)

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] != "http.request":
            raise Cancelled("CLIENT_GONE", "the client closed the connection before its request was whole")
        self.complete = not message["more_body"]
        part: bytes = message["body"]
        return part

    async def _inflated(self, body: bytes, encoding: str) -> bytes:
        limit = self._limits.body_bytes
        if len(body) <= INFLATED_HERE:
            inflated = compression.inflate(body, encoding, limit)
        else:
            inflated = await asyncio.to_thread(compression.inflate, body, encoding, limit)
        self._budget.take(len(inflated))
        self._taken += len(inflated)
        return inflated

    def _take(self, size: int) -> None:
        """Holds `size` bytes in all. Raises where that is more than one body, or all together, may have."""
        if size > self._limits.body_bytes:
            raise too_large(self._limits.body_bytes)
        if size > self._taken:
            self._budget.take(size - self._taken)
            self._taken = size
