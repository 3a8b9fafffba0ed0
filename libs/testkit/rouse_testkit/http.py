"""HTTP/1.1 by hand, for tests that care about every byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 30.0
MAX_LINE = 1 << 20


@dataclass(frozen=True)
class HttpAnswer:
    """An answer as it came; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class HttpConnection:
    """One connection, requests one after another or bytes as they please."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(
        self, method: str, path: str, body: bytes | Any = b"", headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Sends a request and reads its answer; what is not bytes is sent as JSON."""
        self.writer.write(request_bytes(method, path, body, headers))
        await self.writer.drain()
        return await self.answer(head=method == "HEAD")

    async def answer(self, *, head: bool = False) -> HttpAnswer:
        """The next answer. Raises IncompleteReadError where the connection ends before it."""
        async with asyncio.timeout(TIMEOUT_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {}
            for line in lines[1:-2]:
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            status = int(lines[0].split()[1])
            body = b"" if head else await self._body(headers)
            return HttpAnswer(status, headers, body)

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await self.reader.readexactly(int(headers.get("content-length", "0")))
        parts = []
        while size := int(await self.reader.readline(), 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readline()
        await self.reader.readline()
        return b"".join(parts)

    async def ended(self) -> bytes:
        """What comes until the server closes the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""


def request_bytes(method: str, path: str, body: bytes | Any = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """A request as it travels."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"host": "test"} | dict(headers or {})
    if content and not {name.lower() for name in sent} & {"content-length", "transfer-encoding"}:
        sent["content-length"] = str(len(content))
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + content


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[HttpConnection]:
    """A connection to host:port."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=MAX_LINE)
    try:
        yield HttpConnection(reader, writer)
    finally:
        writer.transport.abort()


async def ask(
    address: str, method: str, path: str, body: bytes | Any = b"", headers: Mapping[str, str] | None = None
) -> HttpAnswer:
    """One request on a connection of its own."""
    async with connected(address) as connection:
        return await connection.request(method, path, body, headers)
