"""Links between real sockets: answers, streams, errors, deadlines, and peers that misbehave or go away."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rouse_common.errors import DeadlineExceeded, FailedPrecondition, Internal, ResourceExhausted, Unavailable
from rouse_common.link import Buffer, Incoming, Links, LinkServer
from rouse_common.link.server import WINDOW
from rouse_testkit.front import eventually

MAX_BYTES = 64 << 20
ECHO, COUNT, FAIL, HANG, BREAK = (f"/test.v1.Test/{name}" for name in ("Echo", "Count", "Fail", "Hang", "Break"))
MIXED = "/test.v1.Test/Mixed"


class Handlers:
    """A small service, and what it has seen."""

    def __init__(self) -> None:
        self.hanging = 0
        self.cancelled = 0
        self.sent = 0

    async def echo(self, request: Buffer, call: Incoming) -> list[Buffer]:
        assert 0 < call.remaining_s <= 60
        return [b"<", request, b">"]

    async def count(self, request: Buffer, call: Incoming) -> AsyncIterator[list[Buffer]]:
        for number in range(int(bytes(request))):
            self.sent += 1
            yield [str(number).encode()]
        if request == b"3":
            raise FailedPrecondition("THREE", "that was three")

    async def mixed(self, request: Buffer, call: Incoming) -> list[Buffer] | None:
        for number in range(int(bytes(request))):
            await call.send([str(number).encode()])
        return None if request == b"2" else [b"last"]

    async def fail(self, request: Buffer, call: Incoming) -> list[Buffer]:
        raise ResourceExhausted("FULL", "no room for 'ü'", retry_after_s=1.5, function="f")

    async def broken(self, request: Buffer, call: Incoming) -> list[Buffer]:
        raise ZeroDivisionError("secret")

    async def hang(self, request: Buffer, call: Incoming) -> list[Buffer]:
        self.hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1
        return []


@asynccontextmanager
async def serving(
    listen: str = "127.0.0.1:0", max_concurrent: int = 1000
) -> AsyncIterator[tuple[LinkServer, Handlers, Links]]:
    handlers, links = Handlers(), Links(MAX_BYTES)
    server = LinkServer(listen, max_message_bytes=MAX_BYTES, max_concurrent=max_concurrent)
    for method, handler in ((ECHO, handlers.echo), (FAIL, handlers.fail), (HANG, handlers.hang)):
        server.add(method, handler)
    server.add(COUNT, handlers.count)
    server.add(BREAK, handlers.broken)
    server.add(MIXED, handlers.mixed)
    await server.start()
    try:
        yield server, handlers, links
    finally:
        await links.close()
        await server.stop(1)


def call(
    links: Links, server: LinkServer, method: str, request: bytes = b"", timeout_s: float = 20
) -> Awaitable[Buffer]:
    return links.call(server.address, method.encode(), [request], timeout_s)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_many_calls_share_a_connection(kind: str, tmp_path: Path) -> None:
    async with serving("127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/s") as (server, _, links):
        requests = [bytes([i % 256]) * (i * 137 % 5000) for i in range(300)]
        answers = await asyncio.gather(*[call(links, server, ECHO, r) for r in requests])
        assert [bytes(a) for a in answers] == [b"<" + r + b">" for r in requests]
        assert len(links._calls) == 1
    assert not (tmp_path / "s").exists()


async def test_large_messages_arrive_and_small_ones_pass_them() -> None:
    async with serving() as (server, _, links):
        large = bytes(range(256)) * (32 << 12)
        under_way = [asyncio.create_task(links.call(server.address, ECHO.encode(), [large], 60)) for _ in range(3)]
        await asyncio.sleep(0)
        assert bytes(await call(links, server, ECHO, b"small")) == b"<small>"
        for answer in await asyncio.gather(*under_way):
            assert bytes(answer) == b"<" + large + b">"
        assert len(links._calls) == 2


async def test_a_stream_gives_its_responses_and_then_its_error() -> None:
    async with serving() as (server, _, links):
        got = [bytes(m) async for m in links.stream(server.address, COUNT.encode(), [b"200"], 20)]
        assert got == [str(i).encode() for i in range(200)]
        stream = links.stream(server.address, COUNT.encode(), [b"3"], 20)
        assert [bytes(await anext(stream)) for _ in range(3)] == [b"0", b"1", b"2"]
        with pytest.raises(FailedPrecondition) as caught:
            await anext(stream)
        assert caught.value.reason == "THREE"


async def test_one_handler_may_answer_once_or_many_times() -> None:
    async with serving() as (server, _, links):
        assert bytes(await call(links, server, MIXED, b"0")) == b"last"
        for request, answers in ((b"2", [b"0", b"1"]), (b"3", [b"0", b"1", b"2", b"last"]), (b"0", [b"last"])):
            got = [bytes(m) async for m in links.stream(server.address, MIXED.encode(), [request], 20)]
            assert got == answers


async def test_nothing_is_kept_of_addresses_that_are_gone(tmp_path: Path) -> None:
    links = Links(MAX_BYTES)
    for number in range(3):
        server = LinkServer(f"unix:{tmp_path}/s{number}", max_message_bytes=MAX_BYTES)
        server.add(ECHO, Handlers().echo)
        await server.start()
        assert bytes(await call(links, server, ECHO, b"x")) == b"<x>"
        await server.stop(1)
        with pytest.raises(Unavailable):
            await call(links, server, ECHO, b"x")
    await eventually(lambda: not links._peers, "no address is left")
    await links.close()


async def test_a_slow_reader_holds_its_own_stream_and_nothing_else() -> None:
    async with serving() as (server, handlers, links):
        stream = links.stream(server.address, COUNT.encode(), [b"100000"], 60)
        assert bytes(await anext(stream)) == b"0"
        for _ in range(50):
            assert bytes(await call(links, server, ECHO, b"x")) == b"<x>"
        assert handlers.sent <= WINDOW + 1
        await stream.aclose()
        await eventually(lambda: not server._tasks, "the server knows")


async def test_errors_come_typed_with_their_details() -> None:
    async with serving() as (server, _, links):
        with pytest.raises(ResourceExhausted) as full:
            await call(links, server, FAIL)
        assert (full.value.reason, full.value.retry_after_s, full.value.metadata) == ("FULL", 1.5, {"function": "f"})
        assert full.value.message == "no room for 'ü'"
        with pytest.raises(Internal) as broken:
            await call(links, server, BREAK)
        assert "secret" not in str(broken.value)
        with pytest.raises(Internal, match="not served") as unknown:
            await call(links, server, "/test.v1.Test/Nothing")
        assert unknown.value.reason == "UNKNOWN_METHOD"


async def test_the_deadline_ends_the_call_at_both_ends() -> None:
    async with serving() as (server, handlers, links):
        with pytest.raises(DeadlineExceeded):
            await call(links, server, HANG, timeout_s=0.1)
        await eventually(lambda: handlers.cancelled == 1, "the server knows")
        with pytest.raises(DeadlineExceeded):
            await call(links, server, HANG, timeout_s=0)


async def test_a_caller_that_gives_up_cancels_the_handler() -> None:
    async with serving() as (server, handlers, links):
        task = asyncio.create_task(links.call(server.address, HANG.encode(), [b""], 60))
        await eventually(lambda: handlers.hanging == 1, "the server knows")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: handlers.cancelled == 1, "the server knows")
        assert bytes(await call(links, server, ECHO)) == b"<>"


async def test_calls_beyond_the_bound_are_refused() -> None:
    async with serving(max_concurrent=2) as (server, handlers, links):
        held = [asyncio.create_task(links.call(server.address, HANG.encode(), [b""], 60)) for _ in range(2)]
        await eventually(lambda: handlers.hanging == 2, "the server knows")
        with pytest.raises(ResourceExhausted) as caught:
            await call(links, server, ECHO)
        assert caught.value.reason == "TOO_MANY_CALLS"
        for task in held:
            task.cancel()
        await asyncio.wait(held)


async def test_nobody_there_is_told_apart_from_a_link_that_breaks() -> None:
    async with serving() as (server, handlers, links):
        task = asyncio.create_task(links.call(server.address, HANG.encode(), [b""], 60))
        await eventually(lambda: handlers.hanging == 1, "the server knows")
        for connection in list(server._connections):
            connection.close()
        with pytest.raises(Unavailable) as lost:
            await task
        assert lost.value.reason == "LINK_LOST"
        await eventually(lambda: handlers.cancelled == 1, "the server knows")
        assert bytes(await call(links, server, ECHO)) == b"<>"  # it connects anew
        address = server.address
    links = Links(MAX_BYTES)
    with pytest.raises(Unavailable) as refused:
        await links.call(address, ECHO.encode(), [b""], 5)
    assert refused.value.reason == "NOT_CONNECTED"
    assert not await links.connected(address, 0.2, patient=True)
    await links.close()


async def test_a_neighbour_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    links, address = Links(MAX_BYTES), f"unix:{tmp_path}/late"
    waiting = asyncio.create_task(links.connected(address, 20, patient=True))
    await asyncio.sleep(0)
    async with serving(address):
        assert await waiting
        assert bytes(await links.call(address, ECHO.encode(), [b"hi"], 20)) == b"<hi>"
        await links.close()


async def test_a_server_that_stops_answers_what_is_under_way() -> None:
    async with serving() as (server, _, links):
        stream = links.stream(server.address, COUNT.encode(), [b"40"], 30)
        assert bytes(await anext(stream)) == b"0"
        stopping = asyncio.create_task(server.stop(20))
        got = [bytes(message) async for message in stream]
        assert got == [str(i).encode() for i in range(1, 40)]
        await stopping
        with pytest.raises(Unavailable) as caught:
            await call(links, server, ECHO)
        assert caught.value.reason == "NOT_CONNECTED"


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 64, bytes(16), b"\0"])
async def test_strangers_are_cut_off_and_others_served(garbage: bytes) -> None:
    async with serving() as (server, _, links):
        host, port = server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        if len(garbage) > 1:
            async with asyncio.timeout(20):
                await reader.read()
        assert bytes(await call(links, server, ECHO, b"x")) == b"<x>"
        writer.close()
        await eventually(lambda: len(server._connections) == 1, "the server knows")


async def test_two_servers_do_not_share_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = LinkServer(f"127.0.0.1:{taken.getsockname()[1]}", max_message_bytes=MAX_BYTES)
        with pytest.raises(OSError):
            await server.start()
