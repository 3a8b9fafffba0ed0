"""Object store on a real JetStream, and beside the client library's own."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import nats as client_library
import pytest

from rouse_bus import Bus, layout
from rouse_bus.objects import CHUNK_BYTES, ObjectStore
from rouse_bus.streams import Streams
from rouse_common.errors import DataLoss, NotFound, ResourceExhausted, Unavailable
from rouse_embedded.stores import Nats


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, "test")
    yield bus
    await bus.close()


@pytest.fixture
async def store(bus: Bus) -> ObjectStore:
    store = ObjectStore(bus, "things")
    await store.ensure()
    return store


async def read(store: ObjectStore, name: str, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([chunk async for chunk in store.read(name, offset, length)])


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES - 1])
async def test_what_is_put_is_got(store: ObjectStore, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "in").write_bytes(data)
    info = await store.put_file("a/b.bin", tmp_path / "in", metadata={"kind": "test"})
    assert (info.size_bytes, info.digest) == (size, hashlib.sha256(data).hexdigest())
    found = await store.info("a/b.bin")
    assert (found.size_bytes, found.digest, found.metadata) == (size, info.digest, {"kind": "test"})
    assert await store.get("a/b.bin", limit=size) == data
    assert await store.get_file("a/b.bin", tmp_path / "out", limit=size) == size
    assert (tmp_path / "out").read_bytes() == data


async def test_any_range_can_be_read_where_objects_were_written_at_once(store: ObjectStore) -> None:
    contents = {f"object-{n}": os.urandom(6 * CHUNK_BYTES + n) for n in range(4)}
    await asyncio.gather(*(store.put(name, data) for name, data in contents.items()))
    generator = random.Random(7)
    for name, data in contents.items():
        for _ in range(12):
            offset = generator.randrange(len(data) + 10)
            length = generator.choice([None, 1, 100, CHUNK_BYTES, 3 * CHUNK_BYTES])
            wanted = data[offset:] if length is None else data[offset : offset + length]
            assert await read(store, name, offset, length) == wanted


async def test_a_read_can_be_left_early(store: ObjectStore) -> None:
    await store.put("long", bytes(40 * CHUNK_BYTES))
    async with aclosing(store.read("long")) as chunks:
        async for chunk in chunks:
            assert len(chunk) == CHUNK_BYTES
            break
    assert len(await read(store, "long")) == 40 * CHUNK_BYTES


async def test_putting_again_replaces_and_gives_the_bytes_back(store: ObjectStore) -> None:
    await store.put("x", bytes(4 * CHUNK_BYTES))
    before = await store.size()
    await store.put("x", b"small")
    assert await store.get("x", limit=100) == b"small"
    assert await store.size() < before - 3 * CHUNK_BYTES
    assert [info.name for info in await store.list()] == ["x"]


async def test_delete_leaves_no_byte(store: ObjectStore) -> None:
    await store.put("x", bytes(CHUNK_BYTES))
    assert await store.delete("x")
    assert not await store.delete("x")
    assert await store.list() == []
    assert await store.size() == 0
    with pytest.raises(NotFound) as caught:
        await read(store, "x")
    assert caught.value.reason == "OBJECT_NOT_FOUND"


async def test_a_cancelled_put_leaves_nothing(store: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(bytes(64 << 20))
    for _ in range(3):
        putting = asyncio.create_task(store.put_file("big", path))
        while not putting.done() and await store.size() < 4 << 20:
            pass
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert await store.size() == 0
    assert await store.list() == []


async def test_a_full_bucket_refuses_and_keeps_nothing_of_it(bus: Bus) -> None:
    store = ObjectStore(bus, "small", max_bytes=1 << 20)
    await store.ensure()
    await store.put("first", bytes(CHUNK_BYTES))
    before = await store.size()
    with pytest.raises(ResourceExhausted) as caught:
        await store.put("second", bytes(2 << 20))
    assert caught.value.reason == "BUCKET_FULL"
    assert await store.size() == before


async def test_sweep_takes_what_a_killed_writer_left(bus: Bus, store: ObjectStore) -> None:
    await store.put("kept", bytes(2 * CHUNK_BYTES))
    for _ in range(3):
        await Streams(bus).publish(layout.chunks("things", "0123456789abcdef012345"), bytes(100))
    assert await store.sweep() == 3
    assert await store.sweep() == 0
    assert len(await store.get("kept", limit=1 << 20)) == 2 * CHUNK_BYTES


async def test_a_missing_chunk_is_data_loss(bus: Bus, store: ObjectStore) -> None:
    info = await store.put("torn", bytes(3 * CHUNK_BYTES))
    await Streams(bus).purge(layout.stream("things"), layout.chunks("things", info.key))
    with pytest.raises(DataLoss):
        await read(store, "torn")
    with pytest.raises(DataLoss):
        await read(store, "torn", 2 * CHUNK_BYTES)


async def test_a_larger_object_than_asked_for_is_not_read(store: ObjectStore, tmp_path: Path) -> None:
    await store.put("x", bytes(100))
    with pytest.raises(ResourceExhausted):
        await store.get_file("x", tmp_path / "x", limit=99)
    assert not (tmp_path / "x").exists()


async def test_other_clients_read_ours_and_we_read_theirs(nats_url: str, store: ObjectStore) -> None:
    data = os.urandom(3 * CHUNK_BYTES + 17)
    await store.put("ours", data)
    connection = await client_library.connect(nats_url)
    theirs = await connection.jetstream().object_store("things")
    assert (await theirs.get("ours")).data == data
    await theirs.put("theirs", data)
    assert await store.get("theirs", limit=1 << 20) == data
    assert await read(store, "theirs", 200_000, 300_000) == data[200_000:500_000]
    await theirs.delete("theirs")
    with pytest.raises(NotFound):
        await store.info("theirs")
    assert [info.name for info in await store.list()] == ["ours"]
    await connection.close()


async def test_put_fails_typed_when_the_server_dies(nats: Nats, bus: Bus, store: ObjectStore, tmp_path: Path) -> None:
    back = asyncio.Event()

    async def reconnected() -> None:
        back.set()

    bus.on_reconnect(reconnected)
    path = tmp_path / "big"
    path.write_bytes(bytes(256 << 20))
    putting = asyncio.create_task(store.put_file("big", path))
    while not putting.done() and await store.size() < 4 << 20:
        pass
    nats.kill()
    with pytest.raises(Unavailable) as caught:
        await asyncio.wait_for(putting, 30)
    assert caught.value.reason == "BUS_DOWN"
    await asyncio.to_thread(nats.start)
    await asyncio.wait_for(back.wait(), 20)
    await store.sweep()
    assert await store.size() == 0
