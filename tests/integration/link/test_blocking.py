"""Links that one thread serves: real sockets, the client of all links, and the thread of function instances."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from rouse_common.errors import DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, Unavailable
from rouse_common.link import BlockingLinkServer, Buffer, Links, Ongoing
from rouse_common.link.blocking import MAX_CONNECTIONS
from rouse_common.link.frames import MAGIC, Kind, encode
from rouse_runtime.worker import Worker
from rouse_testkit.front import eventually

MAX_BYTES = 64 << 20
ECHO, FAIL, HOLD = (f"/test.v1.Test/{name}".encode() for name in ("Echo", "Fail", "Hold"))
SECONDS = 20.0
HELLO = encode(Kind.HELLO, 0, body_bytes=len(MAGIC)) + MAGIC


class Served:
    """The handlers, and what happened to them."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.held, self.given_up = 0, 0
        self.release = threading.Event()

    def echo(self, request: Buffer, call: Ongoing) -> Sequence[Buffer]:
        self.threads.add(threading.get_ident())
        return [b"<", request, b">"]

    def fail(self, request: Buffer, call: Ongoing) -> Sequence[Buffer]:
        if request:
            raise InvalidArgument("BAD", bytes(request).decode())
        raise RuntimeError("secret")

    def hold(self, request: Buffer, call: Ongoing) -> Sequence[Buffer]:
        # The call before this one may have been given up more than once.
        self.release.clear()
        self.held += 1
        assert self.release.wait(SECONDS)
        return [b"held"]

    def on_given_up(self) -> None:
        self.given_up += 1
        self.release.set()


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[BlockingLinkServer, Served, Links, str]]:
    served, links, address = Served(), Links(MAX_BYTES), f"unix:{folder}/s"
    server = BlockingLinkServer(
        address, Worker("test"), max_message_bytes=MAX_BYTES, on_given_up=served.on_given_up,
        busy=lambda: FailedPrecondition("BUSY", "another call is under way"),
    )  # fmt: skip
    for method, handler in ((ECHO, served.echo), (FAIL, served.fail), (HOLD, served.hold)):
        server.add(method.decode(), handler)
    await server.start()
    try:
        yield server, served, links, address
    finally:
        await links.close()
        await server.stop(SECONDS)
        assert not (folder / "s").exists()


async def heard(served: Served, server: BlockingLinkServer) -> None:
    """Returns when the call under way was given up, and is over."""
    await eventually(lambda: served.given_up > 0 and server._current is None, "it is given up")
    served.given_up = 0


async def echoed(links: Links, address: str, request: bytes = b"x") -> None:
    assert bytes(await links.call(address, ECHO, [request], SECONDS)) == b"<" + request + b">"


def in_flight() -> float:
    """Calls of HOLD that are not over, as metrics have it."""
    return REGISTRY.get_sample_value("rouse_rpc_in_flight", {"method": HOLD.decode()}) or 0.0


async def connected(path: Path) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.setblocking(False)
    await asyncio.get_running_loop().sock_connect(one, str(path))
    return one


async def test_calls_are_answered_in_the_thread_large_and_small(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, served, links, address):
        sizes = [0, 1, 5000, 70_000, 9 << 20] * 8
        requests = [bytes([n]) * size for n, size in enumerate(sizes)]
        answers = await asyncio.gather(*[links.call(address, ECHO, [r], SECONDS) for r in requests])
        assert [bytes(answer) for answer in answers] == [b"<" + request + b">" for request in requests]
        assert len(served.threads) == 1
        assert threading.get_ident() not in served.threads


async def test_errors_are_typed(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, _, links, address):
        with pytest.raises(InvalidArgument, match="no such thing"):
            await links.call(address, FAIL, [b"no such thing"], SECONDS)
        with pytest.raises(Internal) as unexpected:
            await links.call(address, FAIL, [b""], SECONDS)
        assert "secret" not in str(unexpected.value)
        with pytest.raises(Internal) as unknown:
            await links.call(address, b"/test.v1.Test/Nothing", [b""], SECONDS)
        assert unknown.value.reason == "UNKNOWN_METHOD"


async def test_a_caller_that_gives_up_is_heard_while_the_thread_works(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, served, links, address):
        for number in range(1, 4):
            task = asyncio.create_task(links.call(address, HOLD, [b""], SECONDS))
            await eventually(lambda number=number: served.held == number, "it works")  # type: ignore[misc]
            task.cancel()
            await asyncio.wait([task])
            await heard(served, server)
            await echoed(links, address)


async def test_so_are_a_deadline_and_a_caller_that_died(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, served, links, address):
        with pytest.raises(DeadlineExceeded):
            await links.call(address, HOLD, [b""], 0.5)
        await heard(served, server)
        await echoed(links, address)
        task = asyncio.create_task(links.call(address, HOLD, [b""], SECONDS))
        await eventually(lambda: served.held == 2, "it works")
        await links.forget(address)
        with pytest.raises(Unavailable):
            await task
        await heard(served, server)
        await echoed(links, address)
        await eventually(lambda: in_flight() == 0, "its books are closed, though nobody takes the answer")


async def test_a_second_call_is_refused_while_one_takes_long_and_a_newcomer_greeted(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, served, links, address):
        held = asyncio.create_task(links.call(address, HOLD, [b""], SECONDS))
        await eventually(lambda: server._attending is not None, "the loop reads")
        with pytest.raises(FailedPrecondition) as busy:
            await echoed(links, address)
        assert busy.value.reason == "BUSY"
        other = Links(MAX_BYTES)
        with pytest.raises(FailedPrecondition):
            await echoed(other, address)
        served.release.set()
        assert bytes(await held) == b"held"
        await echoed(links, address)
        await echoed(other, address)
        await other.close()


async def test_a_stop_waits_for_the_call_and_then_no_longer(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, served, links, address):
        held = asyncio.create_task(links.call(address, HOLD, [b""], SECONDS))
        await eventually(lambda: served.held == 1, "it works")
        with pytest.raises(Unavailable) as stopped:
            await asyncio.gather(held, server.stop(0.05))
        assert stopped.value.reason == "UNAVAILABLE"


async def test_what_comes_too_late_surely_did_not_run(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, served, links, address):
        await echoed(links, address)
        gate = threading.Event()
        kept = asyncio.create_task(server._thread.run(gate.wait, SECONDS))
        call = asyncio.create_task(links.call(address, HOLD, [b""], SECONDS))
        (peer,) = server._peers.values()
        await eventually(lambda: select.select([peer.socket], [], [], 0)[0] != [], "it has come")
        stop = asyncio.create_task(server.stop(SECONDS))
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(Unavailable) as late:
            await call
        await asyncio.gather(kept, stop)
        assert late.value.reason == "NOT_CONNECTED"
        assert served.held == 0


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, HELLO + encode(Kind.LAST, 1), HELLO + encode(Kind.CALL, 1)]
)
async def test_strangers_are_cut_off_and_others_served(tmp_path: Path, garbage: bytes, busy: bool) -> None:
    async with serving(tmp_path) as (server, served, links, address):
        await echoed(links, address)
        if busy:
            held = asyncio.create_task(links.call(address, HOLD, [b""], SECONDS))
            await eventually(lambda: server._attending is not None, "the loop reads")
        stranger = await connected(tmp_path / "s")
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(stranger, garbage)
        async with asyncio.timeout(SECONDS):
            while await loop.sock_recv(stranger, 4096):
                if busy and garbage.endswith(encode(Kind.CALL, 1)):
                    break  # refused, not cut off
        stranger.close()
        if busy:
            served.release.set()
            assert bytes(await held) == b"held"
        await echoed(links, address)
        await eventually(lambda: len(server._peers) == 1, "nothing is kept of the stranger")


async def test_silent_connections_make_room(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _, links, address):
        silent = [await connected(tmp_path / "s") for _ in range(MAX_CONNECTIONS)]
        await echoed(links, address)
        assert len(server._peers) <= MAX_CONNECTIONS
        for one in silent:
            one.close()
