"""What a client of the HTTP port may cost: slow, endless, broken and greedy ones are cut, with an answer."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from rouse_gateway.http.app import RestApp
from rouse_gateway.http.limits import Budget, Limits
from rouse_gateway.http.messages import Reply, Request
from rouse_gateway.http.router import Route, Router
from rouse_gateway.http.server import HttpServer
from rouse_testkit.front import eventually
from rouse_testkit.http import HttpConnection, ask, connected, request_bytes

LIMITS = Limits(
    body_bytes=1 << 20, buffered_bytes=3 << 20, header_s=0.3, body_s=0.3, bytes_per_s=1 << 30, idle_s=60, stalled_s=0.3
)


@dataclass
class Served:
    """A server with POST /echo, and what it holds. `gate` lets requests of /wait pass."""

    server: HttpServer
    budget: Budget
    gate: asyncio.Event

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def state(self) -> tuple[int, int, int]:
        inner = self.server._server.server_state
        return len(inner.connections), len(inner.tasks), self.budget.used

    async def idle(self) -> None:
        await eventually(lambda: self.state == (0, 0, 0), f"nothing is held any more: {self.state}")


Start = Callable[..., Awaitable[Served]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts servers, with some limits changed; in the end they hold nothing."""
    started: list[Served] = []

    async def begin(**changes: float) -> Served:
        limits = replace(LIMITS, **changes)  # type: ignore[arg-type]
        gate = asyncio.Event()

        async def echo(request: Request) -> Reply:
            return Reply([request.body])

        async def wait(request: Request) -> Reply:
            await gate.wait()
            return Reply([request.body])

        async def large(request: Request) -> Reply:
            return Reply([bytes(64 << 20)])

        router = Router()
        for route in (
            Route("POST", "/echo", echo),
            Route("POST", "/wait", wait),
            Route("GET", "/large", large),
        ):
            router.add(route)
        budget = Budget(limits.buffered_bytes)
        server = HttpServer("127.0.0.1:0", RestApp(router, limits, budget, None), limits)
        server.bind()
        await server.start()
        started.append(Served(server, budget, gate))
        return started[-1]

    yield begin
    for served in started:
        await served.idle()
        await served.server.stop(1)


async def refusal(connection: HttpConnection) -> tuple[int, str]:
    """Status and reason of what comes, after which the connection ends."""
    answer = await connection.answer()
    assert answer.headers["connection"] == "close"
    assert answer.headers["content-type"] == "application/json"
    assert await connection.ended() == b""
    return answer.status, answer.json["reason"]


async def test_headers_that_take_too_long_are_cut_off(start: Start) -> None:
    served = await start()
    async with connected(served.address) as connection:
        connection.writer.write(b"POST /echo HTTP/1.1\r\nhost: ")
        assert await refusal(connection) == (408, "SLOW_REQUEST")
    # Also those of a second request.
    async with connected(served.address) as connection:
        assert (await connection.request("POST", "/echo", b"x")).body == b"x"
        connection.writer.write(b"POST /ec")
        assert await refusal(connection) == (408, "SLOW_REQUEST")


async def test_a_connection_that_never_says_anything_is_closed(start: Start) -> None:
    served = await start()
    async with connected(served.address) as connection:
        assert await connection.ended() == b""


async def test_a_body_that_takes_too_long_is_cut_off(start: Start) -> None:
    served = await start()
    for head in (b"content-length: 10\r\n\r\n12345", b"transfer-encoding: chunked\r\n\r\n5\r\n12345\r\n"):
        async with connected(served.address) as connection:
            connection.writer.write(b"POST /echo HTTP/1.1\r\nhost: x\r\n" + head)
            assert await refusal(connection) == (408, "SLOW_REQUEST")


async def test_too_many_and_too_large_headers_are_refused(start: Start) -> None:
    served = await start()
    many = {f"x-{n}": "y" for n in range(LIMITS.headers + 1)}
    for headers in (many, {"x-large": "y" * LIMITS.header_bytes}):
        async with connected(served.address) as connection:
            connection.writer.write(request_bytes("POST", "/echo", b"", headers))
            assert await refusal(connection) == (431, "HEADERS_TOO_LARGE")
    async with connected(served.address) as connection:
        connection.writer.write(request_bytes("GET", "/" + "x" * LIMITS.header_bytes))
        assert await refusal(connection) == (431, "HEADERS_TOO_LARGE")


async def test_a_body_that_is_too_large_is_refused_and_the_sender_reads_why(start: Start) -> None:
    served = await start()
    body = bytes(LIMITS.body_bytes + 1)
    for headers in ({}, {"transfer-encoding": "chunked"}):
        content = body if not headers else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        answer = await ask(served.address, "POST", "/echo", content, headers)
        assert (answer.status, answer.json["reason"]) == (413, "BODY_TOO_LARGE")
    whole = await ask(served.address, "POST", "/echo", body[:-1])
    assert len(whole.body) == LIMITS.body_bytes


async def test_one_who_asks_before_sending_is_told_at_once(start: Start) -> None:
    served = await start()
    async with connected(served.address) as connection:
        headers = {"expect": "100-continue", "content-length": str(LIMITS.body_bytes + 1)}
        connection.writer.write(request_bytes("POST", "/echo", b"", headers))
        assert await refusal(connection) == (413, "BODY_TOO_LARGE")
    async with connected(served.address) as connection:
        headers = {"expect": "100-continue", "content-length": "2"}
        connection.writer.write(request_bytes("POST", "/echo", b"", headers))
        assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.writer.write(b"ok")
        assert (await connection.answer()).body == b"ok"


async def test_a_bomb_is_refused(start: Start) -> None:
    served = await start()
    bomb = gzip.compress(bytes(LIMITS.body_bytes * 50))
    answer = await ask(served.address, "POST", "/echo", bomb, {"content-encoding": "gzip"})
    assert (answer.status, answer.json["reason"]) == (413, "BODY_TOO_LARGE")
    answer = await ask(served.address, "POST", "/echo", b"x", {"content-encoding": "br"})
    assert (answer.status, answer.json["reason"]) == (415, "UNSUPPORTED_ENCODING")


async def test_bodies_have_a_bound_together(start: Start) -> None:
    served = await start()
    body = bytes(LIMITS.body_bytes)
    async with asyncio.TaskGroup() as tasks:
        held = [tasks.create_task(ask(served.address, "POST", "/wait", body)) for _ in range(3)]
        await eventually(lambda: served.budget.used == 3 * len(body), "three bodies are held")
        answer = await ask(served.address, "POST", "/echo", b"one more")
        assert (answer.status, answer.json["reason"], answer.headers["retry-after"]) == (429, "BODIES_FULL", "1")
        served.gate.set()
    assert [len(task.result().body) for task in held] == [len(body)] * 3
    assert (await ask(served.address, "POST", "/echo", b"one more")).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff\x00garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /echo HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"POST /echo HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
        b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\nxyz",
        b"GET /\xc3\xbc HTTP/1.1\r\n\r\n",
        b"GET http:// HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nhi",
    ],
)
async def test_what_is_no_request_is_answered_400(start: Start, sent: bytes) -> None:
    served = await start()
    async with connected(served.address) as connection:
        connection.writer.write(sent)
        status, reason = await refusal(connection)
        assert (status, reason) in ((400, "MALFORMED_HTTP"), (400, "NO_UPGRADE")), reason


async def test_broken_chunks_end_the_request(start: Start) -> None:
    served = await start()
    async with connected(served.address) as connection:
        connection.writer.write(b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
        await connection.ended()


async def test_a_half_closed_connection_holds_nothing(start: Start) -> None:
    served = await start()
    for sent in (
        b"",
        b"POST /ec",
        b"POST /echo HTTP/1.1\r\ncontent-length: 9\r\n\r\nhalf",
        request_bytes("POST", "/wait"),
    ):
        async with connected(served.address) as connection:
            connection.writer.write(sent)
            connection.writer.write_eof()
            await connection.ended()
        await served.idle()


async def test_connections_have_a_bound(start: Start) -> None:
    served = await start(connections=2)
    async with connected(served.address) as first, connected(served.address) as second:
        for connection in (first, second):
            assert (await connection.request("POST", "/echo", b"x")).status == 200
        async with connected(served.address) as third:
            assert await refusal(third) == (503, "TOO_MANY_CONNECTIONS")


async def test_one_who_does_not_read_is_cut_off(start: Start) -> None:
    served = await start()
    with socket.create_connection(("127.0.0.1", int(served.address.rpartition(":")[2]))) as deaf:
        deaf.sendall(request_bytes("GET", "/large"))
        await eventually(lambda: served.state[0] == 1, "it is connected")
        await served.idle()


async def test_a_stop_waits_for_requests_and_ends_those_that_take_too_long(start: Start) -> None:
    served = await start()
    async with asyncio.TaskGroup() as tasks:
        quick = tasks.create_task(ask(served.address, "POST", "/wait", b"quick"))
        await eventually(lambda: served.state[1] == 1, "it waits")
        stopping = tasks.create_task(served.server.stop(10))
        served.gate.set()
        await stopping
        assert quick.result().body == b"quick"
    served = await start()
    async with asyncio.TaskGroup() as tasks:
        endless = tasks.create_task(ask(served.address, "POST", "/wait", b"endless"))
        await eventually(lambda: served.state[1] == 1, "it waits")
        await served.server.stop(0.05)
        answer = await endless
        assert (answer.status, json.loads(answer.body)["reason"]) == (503, "STOPPING")
