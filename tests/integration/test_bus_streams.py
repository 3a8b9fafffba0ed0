"""Streams and consumers on a real JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rouse_bus import Bus
from rouse_bus.consumers import Consumer
from rouse_bus.streams import Retention, Streams, StreamSettings
from rouse_common.errors import AlreadyExists, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from rouse_embedded.stores import Nats

WORK = StreamSettings("WORK", ("work.*",), retention=Retention.WORK_QUEUE, max_bytes=1 << 20)


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, "test")
    yield bus
    await bus.close()


@pytest.fixture
async def streams(bus: Bus) -> Streams:
    streams = Streams(bus)
    await streams.create(WORK)
    return streams


async def fill(streams: Streams, count: int, subject: str = "work.a") -> list[int]:
    return [await streams.publish(subject, str(number).encode()) for number in range(count)]


async def test_a_stream_is_made_once(streams: Streams) -> None:
    await streams.create(WORK)
    with pytest.raises(AlreadyExists):
        await streams.create(StreamSettings("WORK", ("work.*",)))
    await streams.ensure(StreamSettings("WORK", ("work.*",)))


async def test_ensure_does_not_take_the_subjects_of_another_stream(streams: Streams) -> None:
    with pytest.raises(NotFound):
        await streams.ensure(StreamSettings("OTHER", ("work.>",)))


async def test_metadata_and_bytes_are_told(streams: Streams) -> None:
    await streams.create(StreamSettings("M", ("m",), metadata={"owner": "tests"}))
    await streams.publish("m", bytes(1000))
    state = await streams.state("M")
    assert state.metadata["owner"] == "tests"
    assert state.messages == 1
    assert state.bytes >= 1000
    assert [s.name for s in await streams.list("work.>")] == ["WORK"]


async def test_deleting_twice_is_told(streams: Streams) -> None:
    assert await streams.delete("WORK")
    assert not await streams.delete("WORK")
    with pytest.raises(NotFound) as caught:
        await streams.publish("work.a", b"")
    assert caught.value.reason == "STREAM_NOT_FOUND"


async def test_past_its_bytes_a_stream_refuses(streams: Streams) -> None:
    for _ in range(10):
        await streams.publish("work.a", bytes(100_000))
    with pytest.raises(ResourceExhausted) as caught:
        await streams.publish("work.a", bytes(100_000))
    assert caught.value.reason == "STREAM_FULL"


async def test_too_large_a_message_is_refused(bus: Bus, streams: Streams) -> None:
    with pytest.raises(InvalidArgument):
        await streams.publish("work.a", bytes(bus.max_payload + 1))


@pytest.mark.parametrize("batch", [1, 3, 256])
async def test_scan_reads_one_subject_in_order_and_leaves_it(streams: Streams, batch: int) -> None:
    for number in range(7):
        await streams.publish("work.a", str(number).encode())
        await streams.publish("work.b", b"other")
    found = [message async for message in streams.scan("WORK", "work.a", batch=batch)]
    assert [message.data for message in found] == [str(n).encode() for n in range(7)]
    assert [message.following for message in found] == [6, 5, 4, 3, 2, 1, 0]
    again = [m.data async for m in streams.scan("WORK", "work.a", start=found[3].sequence, batch=batch)]
    assert again == [b"3", b"4", b"5", b"6"]
    assert await streams.subjects("WORK", "work.*") == {"work.a": 7, "work.b": 7}


async def test_scan_of_a_stream_that_is_not_there(streams: Streams) -> None:
    with pytest.raises(NotFound):
        _ = [message async for message in streams.scan("NONE", "x")]


async def test_purge_takes_one_subject(streams: Streams) -> None:
    await fill(streams, 3)
    await fill(streams, 2, "work.b")
    assert await streams.purge("WORK", "work.a") == 3
    assert await streams.subjects("WORK", "work.*") == {"work.b": 2}


async def test_a_consumer_takes_in_order_and_once(bus: Bus, streams: Streams) -> None:
    sequences = await fill(streams, 10)
    consumer = await Consumer(bus, "WORK", "work.a", "a").open()
    first = await consumer.take(4, 0)
    await consumer.acknowledge(first)
    second = await consumer.take(100, 0)
    await consumer.acknowledge(second)
    assert [message.sequence for message in first + second] == sequences
    assert await consumer.take(1, 0) == []
    assert (await streams.state("WORK")).messages == 0


async def test_the_wait_ends_with_the_first_message(bus: Bus, streams: Streams) -> None:
    consumer = await Consumer(bus, "WORK", "work.a", "a").open()
    taking = asyncio.create_task(consumer.take(10, 20))
    await streams.publish("work.b", b"not for this one")
    await streams.publish("work.a", b"yes")
    assert [message.data for message in await asyncio.wait_for(taking, 10)] == [b"yes"]


async def test_a_cancelled_wait_loses_nothing(bus: Bus, streams: Streams) -> None:
    consumer = await Consumer(bus, "WORK", "work.a", "a").open()
    for _ in range(3):
        taking = asyncio.create_task(consumer.take(1, 20))
        assert not (await asyncio.wait({taking}, timeout=0.05))[0]
        taking.cancel()
        await asyncio.wait({taking})
    await fill(streams, 10)
    taken: list[bytes] = []
    while len(taken) < 10:
        messages = await consumer.take(2, 5)
        assert messages
        await consumer.acknowledge(messages)
        taken += [message.data for message in messages]
    assert taken == [str(n).encode() for n in range(10)]


async def test_a_new_consumer_begins_with_what_is_not_acknowledged(bus: Bus, streams: Streams) -> None:
    await fill(streams, 6)
    old = await Consumer(bus, "WORK", "work.a", "a").open()
    await old.acknowledge((await old.take(4, 0))[:2])
    new = await Consumer(bus, "WORK", "work.a", "a").open()
    await fill(streams, 1)
    assert [message.data for message in await new.take(10, 0)] == [b"2", b"3", b"4", b"5", b"0"]


async def test_what_is_stored_survives_a_crash_of_the_server(nats: Nats, bus: Bus, streams: Streams) -> None:
    back = asyncio.Event()

    async def reconnected() -> None:
        back.set()

    await fill(streams, 5)
    old = await Consumer(bus, "WORK", "work.a", "a").open()
    await old.acknowledge(await old.take(2, 0))
    bus.on_reconnect(reconnected)
    nats.kill()
    await asyncio.to_thread(nats.start)
    await asyncio.wait_for(back.wait(), 20)
    with pytest.raises(Unavailable):
        await old.take(1, 0)
    new = await Consumer(bus, "WORK", "work.a", "a").open()
    assert [message.data for message in await new.take(10, 0)] == [b"2", b"3", b"4"]
