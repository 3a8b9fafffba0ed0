"""Publishing: one build at a time, no change forgotten, the newest table in the end."""

from __future__ import annotations

import asyncio

import pytest

from rouse_bus import subjects
from rouse_cluster_manager.announcer import MAX_WAITING, Announcer
from rouse_cluster_manager.publisher import RoutingPublisher
from rouse_common.errors import Unavailable
from rouse_contracts import cluster, functions


class Wire:
    """A bus that keeps what it was given, and refuses while it is `away`."""

    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.max_payload = max_payload
        self.away = False
        self.refusals: asyncio.Queue[str] = asyncio.Queue()
        self.messages: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def publish(self, subject: str, data: bytes) -> None:
        if self.away:
            self.refusals.put_nowait(subject)
            raise Unavailable("BUS_DOWN", "away")
        self.messages.put_nowait((subject, data))


class Source:
    """A database with one function, whose builds can be held up."""

    def __init__(self) -> None:
        self.names = ["f"]
        self.generation = 0
        self.running = self.most_at_once = self.builds = 0
        self.go, self.begun = asyncio.Event(), asyncio.Event()
        self.go.set()
        self.away = False

    async def read(self) -> cluster.RoutingTable:
        self.running += 1
        self.builds += 1
        self.most_at_once = max(self.most_at_once, self.running)
        names = list(self.names)
        self.begun.set()
        await self.go.wait()
        self.running -= 1
        if self.away:
            raise Unavailable("DATABASE_DOWN", "away")
        self.generation += 1
        return cluster.RoutingTable(
            generation=self.generation, functions=[cluster.FunctionRoute(name=name) for name in names]
        )


async def next_names(wire: Wire) -> list[str]:
    async with asyncio.timeout(5):
        subject, data = await wire.messages.get()
    assert subject == subjects.ROUTING
    return [route.name for route in cluster.RoutingTable.FromString(data).functions]


@pytest.fixture
async def parts():
    wire, source = Wire(), Source()
    publisher = RoutingPublisher(source.read, wire, report_delay_s=0.01, repeat_s=60)
    task = asyncio.create_task(publisher.run())
    yield publisher, wire, source
    task.cancel()
    await asyncio.wait({task})


async def test_a_change_during_a_build_is_built_afterwards(parts) -> None:
    publisher, wire, source = parts
    source.go.clear()
    publisher.changed()
    await source.begun.wait()
    source.names = ["f", "g"]
    publisher.changed()
    waiting = [asyncio.create_task(publisher.table()) for _ in range(20)]
    await asyncio.sleep(0)
    source.go.set()
    assert await next_names(wire) in (["f"], ["f", "g"])
    tables = await asyncio.gather(*waiting)
    assert all([route.name for route in table.functions] == ["f", "g"] for table in tables)
    assert source.most_at_once == 1
    assert source.builds == 2


async def test_who_asks_sees_the_change_that_was_known(parts) -> None:
    publisher, _, source = parts
    for count in range(5):
        source.names = [f"f{i}" for i in range(count)]
        publisher.changed()
        assert len((await publisher.table()).functions) == count
    builds = source.builds
    await publisher.table()
    assert source.builds == builds


async def test_a_table_that_is_the_same_is_not_published_again(parts) -> None:
    publisher, wire, source = parts
    publisher.changed()
    assert await next_names(wire) == ["f"]
    first = await publisher.table()
    publisher.changed()
    assert (await publisher.table()).generation == first.generation
    source.names = ["g"]
    publisher.touched()
    assert await next_names(wire) == ["g"]
    assert wire.messages.empty()


async def test_what_could_not_be_published_is_published_later(parts, monkeypatch) -> None:
    publisher, wire, source = parts
    monkeypatch.setattr("rouse_cluster_manager.publisher.RETRY_S", 0.001)
    wire.away = True
    publisher.changed()
    for _ in range(3):
        await wire.refusals.get()
    source.names = ["g"]
    publisher.changed()
    wire.away = False
    while await next_names(wire) != ["g"]:
        pass


async def test_a_database_that_is_away_delays_but_loses_nothing(parts, monkeypatch) -> None:
    publisher, wire, source = parts
    monkeypatch.setattr("rouse_cluster_manager.publisher.RETRY_S", 0.001)
    source.away = True
    publisher.changed()
    with pytest.raises(Unavailable):
        await publisher.table()
    source.away = False
    assert await next_names(wire) == ["f"]


async def test_a_table_too_large_for_a_message_is_an_empty_one(parts) -> None:
    publisher, wire, source = parts
    source.names = ["f" * 100]
    wire.max_payload = 50
    publisher.changed()
    async with asyncio.timeout(5):
        assert await wire.messages.get() == (subjects.ROUTING, b"")
    assert len((await publisher.table()).functions) == 1


async def test_the_table_is_repeated_for_those_who_missed_it() -> None:
    wire, source = Wire(), Source()
    publisher = RoutingPublisher(source.read, wire, report_delay_s=0.01, repeat_s=0.02)
    task = asyncio.create_task(publisher.run())
    try:
        generations = set()
        for _ in range(3):
            async with asyncio.timeout(5):
                _, data = await wire.messages.get()
            generations.add(cluster.RoutingTable.FromString(data).generation)
        assert len(generations) == 1
    finally:
        task.cancel()
        await asyncio.wait({task})


def event(number: int) -> functions.Event:
    return functions.Event(kind="function.deployed", subject=f"f{number}")


async def test_events_keep_their_order_over_an_outage(monkeypatch) -> None:
    monkeypatch.setattr("rouse_cluster_manager.announcer.RETRY_S", 0.001)
    wire = Wire()
    wire.away = True
    announcer = Announcer(wire)
    task = asyncio.create_task(announcer.run())
    try:
        for number in range(3):
            announcer.add(event(number))
        await wire.refusals.get()
        for number in range(3, MAX_WAITING + 5):
            announcer.add(event(number))
        wire.away = False
        async with asyncio.timeout(10):
            got = [await wire.messages.get() for _ in range(MAX_WAITING)]
        await announcer.flush(10)
        assert wire.messages.empty()
        numbers = [int(functions.Event.FromString(data).subject[1:]) for _, data in got]
        assert numbers == list(range(5, MAX_WAITING + 5))
        assert {subject for subject, _ in got} == {"rouse.events.function.deployed"}
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_flushing_gives_up_while_the_bus_is_away() -> None:
    wire = Wire()
    wire.away = True
    announcer = Announcer(wire)
    announcer.add(event(1))
    await announcer.flush(0.01)
    assert wire.messages.empty()
