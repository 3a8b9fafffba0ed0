"""Bus against a real NATS server that is killed and comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from opentelemetry import trace

from rouse_bus import Bus, subjects
from rouse_common import telemetry
from rouse_common.errors import InvalidArgument, Unavailable
from rouse_embedded.stores import Nats


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, "test")
    yield bus
    await bus.close()


class Inbox:
    """A handler whose messages can be waited for."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()

    async def __call__(self, data: bytes) -> None:
        await self.queue.put(data)

    async def next(self) -> bytes:
        return await asyncio.wait_for(self.queue.get(), 20)


async def test_what_is_published_arrives_in_order(bus: Bus) -> None:
    inbox = Inbox()
    await bus.subscribe(subjects.all_events(), inbox)
    for number in range(100):
        await bus.publish(subjects.event("function.deployed"), str(number).encode())
    assert [await inbox.next() for _ in range(100)] == [str(n).encode() for n in range(100)]


async def test_the_handler_runs_in_the_trace_of_the_sender(bus: Bus) -> None:
    telemetry.configure("test")
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def handler(data: bytes) -> None:
        await seen.put(telemetry.current_trace_id())

    await bus.subscribe(subjects.ROUTING, handler)
    with telemetry.span("outer") as span:
        await bus.publish(subjects.ROUTING, b"")
    assert await asyncio.wait_for(seen.get(), 5) == trace.format_trace_id(span.get_span_context().trace_id)


async def test_a_failing_handler_is_logged_and_goes_on(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()

    async def handler(data: bytes) -> None:
        if data == b"bad":
            raise KeyError("no such thing")
        await inbox(data)

    await bus.subscribe("x", handler)
    await bus.publish("x", b"bad")
    await bus.publish("x", b"good")
    assert await inbox.next() == b"good"
    assert [r.exc_info[0] for r in caplog.records if r.exc_info and r.levelno == logging.ERROR] == [KeyError]


async def test_a_slow_handler_loses_the_oldest(bus: Bus) -> None:
    inbox, gate, entered = Inbox(), asyncio.Event(), asyncio.Event()

    async def handler(data: bytes) -> None:
        entered.set()
        await gate.wait()
        await inbox(data)

    last = Inbox()
    await bus.subscribe("slow", handler, max_pending=2)
    await bus.subscribe("slow", last)
    await bus.publish("slow", b"0")
    await asyncio.wait_for(entered.wait(), 5)
    for number in range(1, 6):
        await bus.publish("slow", str(number).encode())
    while await last.next() != b"5":
        pass
    gate.set()
    assert [await inbox.next() for _ in range(3)] == [b"0", b"4", b"5"]


async def test_comes_back_with_its_subscriptions(nats: Nats, bus: Bus) -> None:
    inbox, back = Inbox(), asyncio.Event()

    async def reconnected() -> None:
        back.set()

    bus.on_reconnect(reconnected)
    await bus.subscribe("kept", inbox)
    nats.kill()
    while bus.connected:
        await asyncio.wait_for(lost(bus), 20)
    with pytest.raises(Unavailable) as caught:
        await bus.publish("kept", b"lost")
    assert caught.value.reason == "BUS_DOWN"
    during = Inbox()
    await bus.subscribe("during", during)
    await asyncio.to_thread(nats.start)
    await asyncio.wait_for(back.wait(), 20)
    await bus.publish("kept", b"1")
    await bus.publish("during", b"2")
    assert (await inbox.next(), await during.next()) == (b"1", b"2")


async def lost(bus: Bus) -> None:
    """Returns once a request has failed because the server is gone."""
    try:
        await bus.request("nobody.answers", b"", what="asking", timeout_s=1)
    except Unavailable:
        return


async def test_waits_for_a_server_that_comes_later(nats: Nats) -> None:
    nats.stop()
    connecting = asyncio.create_task(Bus.connect(nats.url, "test"))
    bus = Bus.open(nats.url, "other")
    assert not bus.connected
    with pytest.raises(Unavailable):
        await bus.publish("x", b"")
    await asyncio.to_thread(nats.start)
    late = await asyncio.wait_for(connecting, 20)
    await asyncio.wait_for(bus.wait_connected(), 20)
    assert late.connected
    assert bus.connected
    await late.close()
    await bus.close()


async def test_an_answer_that_never_comes_fails_when_the_server_dies(nats: Nats, bus: Bus) -> None:
    heard = Inbox()
    await bus.subscribe("silent", heard)
    asking = asyncio.create_task(bus.request("silent", b"?", what="asking", timeout_s=60))
    assert await heard.next() == b"?"
    nats.kill()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(asking, 20)


async def test_unsubscribed_hears_nothing(bus: Bus) -> None:
    first, second = Inbox(), Inbox()
    subscription = await bus.subscribe("x", first)
    await bus.subscribe("x", second)
    await bus.unsubscribe(subscription)
    await bus.publish("x", b"1")
    assert await second.next() == b"1"
    assert first.queue.empty()


async def test_too_large_a_message_is_refused(bus: Bus) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await bus.publish("x", bytes(bus.max_payload + 1))
    assert caught.value.reason == "MESSAGE_TOO_LARGE"


async def test_close_flushes(nats_url: str, bus: Bus) -> None:
    inbox = Inbox()
    await bus.subscribe("last", inbox)
    other = await Bus.connect(nats_url, "other")
    await other.publish("last", b"words")
    await other.close()
    assert await inbox.next() == b"words"


async def test_a_wrong_password_is_waited_out_and_never_shown(nats: Nats, caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus.open(nats.url.replace(nats.password, "wrongwrong"), "test")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bus.wait_connected(), 0.5)
    assert not bus.connected
    assert "Authorization" in caplog.text
    assert "wrongwrong" not in caplog.text
    await bus.close()
