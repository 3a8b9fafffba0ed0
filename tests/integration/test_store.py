"""The store: constraints that hold whoever writes, transactions that are retried, ledgers that count once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import exc, text

from rouse_common.errors import Unavailable
from rouse_store import Database, Unit, WriterLock, migrate
from rouse_store.models import DEFAULT_TENANT, Artefact, Function, Instance, Node
from rouse_store.repositories.usage import UsageSum
from rouse_store.repositories.usage_hours import Period

NOW = datetime(2026, 11, 21, tzinfo=UTC)
DIGEST = "ab" * 32


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    migrate.upgrade(postgres_url)
    store = Database(postgres_url)
    yield store
    await store.close()


def artefact(digest: str = DIGEST) -> dict[str, Any]:
    return {
        "digest": digest,
        "format": "PYTHON",
        "artefact_bytes": 10,
        "weights_bytes": 4,
        "architecture": "",
        "signature": {},
        "created_at": NOW,
    }


def add_version(unit: Unit, name: str, version_id: str, digest: str = DIGEST) -> Function:
    function, _ = unit.functions.ensure(f"id-{name}", name, NOW)
    stored = unit.functions.store_artefact(artefact(digest))
    function.active_version = unit.functions.add_version(function, version_id, stored, {"name": name}, NOW).version
    return function


def add_node(unit: Unit, node_id: str, state: str = "READY", since: datetime = NOW) -> Node:
    node = Node(
        node_id=node_id, incarnation="1", router_address="r", link_address="l", device_address="d",
        coordinator_address="c", state=state, registered_at=NOW, last_heartbeat=NOW, since=since, devices=[],
    )  # fmt: skip
    unit.nodes.add(node)
    return node


def add_instance(unit: Unit, number: int, version_id: str, state: str = "READY", node_id: str = "n0") -> None:
    moment = NOW + timedelta(seconds=number)
    unit.instances.add(
        Instance(
            instance_id=f"i{number}", version_id=version_id, node_id=node_id, node_incarnation="1", state=state,
            reason="", created_at=moment, since=moment, ready_at=None,
        )
    )  # fmt: skip


async def count(database: Database, table: str) -> int:
    return await database.run(lambda unit: unit.session.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


async def test_a_function_has_exactly_one_active_version_at_every_commit(database: Database) -> None:
    await database.run(lambda unit: add_version(unit, "f", "v1"))
    await database.run(lambda unit: add_version(unit, "f", "v2"))
    function = await database.run(lambda unit: unit.functions.find("f"))
    assert function is not None
    assert (function.active.version_id, function.active_version) == ("v2", 2)
    with pytest.raises(exc.IntegrityError):
        await database.run(lambda unit: unit.functions.ensure("id-g", "g", NOW))
    with pytest.raises(exc.IntegrityError):
        await database.run(lambda unit: unit.session.execute(text("UPDATE functions SET active_version = 3")))
    with pytest.raises(exc.IntegrityError):
        await database.run(lambda unit: unit.session.execute(text("DELETE FROM versions WHERE version = 2")))


BAD_STATEMENTS = [
    "UPDATE functions SET name = 'a/b'",
    "UPDATE functions SET state = 'SLEEPING'",
    "UPDATE versions SET version = 0",
    "UPDATE artefacts SET digest = 'xyz'",
    "UPDATE artefacts SET weights_bytes = -1",
    "UPDATE instances SET state = 'GONE'",
    "UPDATE nodes SET state = 'AWAY'",
    "UPDATE instances SET node_id = 'nowhere'",
    "DELETE FROM artefacts",
    "INSERT INTO devices VALUES ('n0', 'gpu0', 'tpu', 1, 0)",
    "INSERT INTO devices VALUES ('n0', 'gpu0', 'host', 0, 0)",
    "INSERT INTO placements VALUES ('n0', 'v1', '', 'SOMEWHERE', 1, '', 0, now())",
    "INSERT INTO placements VALUES ('n0', 'unknown', '', 'HOST', 1, '', 0, now())",
]


@pytest.mark.parametrize("statement", BAD_STATEMENTS)
async def test_the_database_refuses_what_must_not_be(database: Database, statement: str) -> None:
    def prepare(unit: Unit) -> None:
        add_version(unit, "f", "v1")
        add_node(unit, "n0")
        add_instance(unit, 1, "v1")

    await database.run(prepare)
    with pytest.raises(exc.IntegrityError):
        await database.run(lambda unit: unit.session.execute(text(statement)))


async def test_deleting_a_function_takes_everything_but_the_ledgers(database: Database) -> None:
    def prepare(unit: Unit) -> str:
        function = add_version(unit, "f", "v1")
        add_node(unit, "n0")
        add_instance(unit, 1, "v1")
        unit.session.execute(text("INSERT INTO placements VALUES ('n0', 'v1', '', 'HOST', 1, '', 0, now())"))
        unit.events.add(NOW, "function.deployed", "f", "")
        unit.usage.add([usage("r1")])
        return function.function_id

    function_id = await database.run(prepare)

    def remove(unit: Unit) -> None:
        function = unit.functions.get(function_id, lock=True)
        assert function is not None
        function.state = "DELETING"
        unit.session.flush()
        condemned = unit.functions.condemn_artefacts(function_id)
        assert condemned == [DIGEST]
        unit.functions.remove(function_id)

    await database.run(remove)
    for table in ("functions", "versions", "artefacts", "instances", "placements"):
        assert await count(database, table) == 0, table
    for table in ("events", "usage_records", "usage_totals", "nodes"):
        assert await count(database, table) == 1, table


async def test_an_artefact_is_condemned_only_where_no_other_function_uses_it(database: Database) -> None:
    def prepare(unit: Unit) -> None:
        add_version(unit, "f", "v1")
        add_version(unit, "f", "v2", "cd" * 32)
        add_version(unit, "g", "w1")

    await database.run(prepare)

    def condemn(unit: Unit, name: str) -> list[str]:
        function = unit.functions.find(name, lock=True)
        assert function is not None
        function.state = "DELETING"
        unit.session.flush()
        return unit.functions.condemn_artefacts(function.function_id)

    assert await database.run(lambda unit: condemn(unit, "f")) == ["cd" * 32]
    # Its other user is going too, so nobody keeps it.
    assert await database.run(lambda unit: condemn(unit, "g")) == [DIGEST]
    marked = await database.run(lambda unit: {a.digest: a.deleting for a in unit.session.query(Artefact)})
    assert marked == {DIGEST: True, "cd" * 32: True}


def usage(request_id: str, function: str = "f", version_id: str = "v1", **fields: Any) -> dict[str, Any]:
    return {
        "request_id": request_id, "function": function, "version_id": version_id, "tenant": "t", "node_id": "n0",
        "device": "gpu0", "finished_at": NOW, "recorded_at": NOW, "device_ms": 2.0, "swap_ms": 1.0, "queue_ms": 0.5,
        "status_code": 0, "swapped_in": True,
    } | fields  # fmt: skip


async def test_each_request_counts_once_however_often_and_by_whom_it_is_recorded(database: Database) -> None:
    batches = [[usage(f"r{i}") for i in order] for order in (range(50), range(49, -1, -1), range(25, 75))]
    batches += [[usage("r1"), usage("r1", status_code=5)]]

    def adding(batch: list[dict[str, Any]]) -> Callable[[Unit], int]:
        return lambda unit: unit.usage.add(batch)

    counted = await asyncio.gather(*(database.run(adding(batch)) for batch in batches))
    assert sum(counted) == 75
    total = await database.run(lambda unit: unit.usage.total("f", ["v1", "v2"]))
    assert (total.requests, total.failures, total.swap_ins) == (75, 0, 75)
    assert total.device_ms == pytest.approx(150)
    assert await database.run(lambda unit: unit.usage.total("g", ["v1"])) == type(total)()


async def test_failures_are_counted_by_version(database: Database) -> None:
    records = [usage("a"), usage("b", status_code=14, swapped_in=False), usage("c", version_id="v2")]
    await database.run(lambda unit: unit.usage.add(records))
    total = await database.run(lambda unit: unit.usage.total("f", ["v1"]))
    assert (total.requests, total.failures, total.swap_ins) == (2, 1, 1)


async def test_usage_is_summed_by_tenant_and_by_function(database: Database) -> None:
    records = [
        usage("a", tenant="t"), usage("b", tenant="u", device_ms=9.0, status_code=14), usage("c", "g", tenant="t"),
        usage("d", version_id="v2", tenant="u"),
    ]  # fmt: skip
    await database.run(lambda unit: unit.usage.add(records))

    async def rows(names: list[str], tenant: str = "", most: int = 10) -> list[tuple[Any, ...]]:
        found = await database.run(lambda unit: unit.usage.by(names, tenant, most))
        return [(*key.values(), total.requests, total.failures, total.device_ms) for key, total in found]

    assert await rows(["tenant"]) == [("u", 2, 1, 11.0), ("t", 2, 0, 4.0)]
    assert await rows(["function"]) == [("f", 3, 1, 13.0), ("g", 1, 0, 2.0)]
    assert await rows(["tenant", "function"], "t") == [("t", "f", 1, 0, 2.0), ("t", "g", 1, 0, 2.0)]
    assert await rows(["function"], "nobody") == []
    assert await rows(["tenant"], most=1) == [("u", 2, 1, 11.0)]
    assert (await database.run(lambda unit: unit.usage.total("f", ["v1", "v2"]))).requests == 3


async def test_hours_add_up_to_the_totals_and_a_period_takes_its_hours(database: Database) -> None:
    late: dict[str, Any] = {"finished_at": NOW - timedelta(hours=2), "recorded_at": NOW}
    wrong: dict[str, Any] = {"finished_at": datetime(1970, 1, 1, tzinfo=UTC), "recorded_at": NOW + timedelta(hours=1)}
    records = [usage("a"), usage("b", **late), usage("c", "g", tenant="u", **late), usage("d", **wrong)]
    await database.run(lambda unit: unit.usage.add(records))
    await database.run(lambda unit: unit.usage.add(records))

    async def listed(period: Period, most: int = 10, last: Any = None, tenant: str = "") -> list[tuple[Any, ...]]:
        found = await database.run(lambda unit: unit.usage.ledger(tenant, most, period, last))
        return [(*key.values(), total.requests) for key, total in found]

    hour = NOW.replace(minute=0, second=0, microsecond=0)
    before, after = hour - timedelta(hours=2), hour + timedelta(hours=1)
    whole = [(before, "t", "f", 1), (before, "u", "g", 1), (hour, "t", "f", 1), (after, "t", "f", 1)]
    assert await listed(Period()) == whole
    assert await listed(Period(until=hour)) == whole[:2]
    assert await listed(Period(hour, after)) == whole[2:3]
    assert await listed(Period(), tenant="u") == whole[1:2]
    assert await listed(Period(), 2) == whole[:2]
    assert await listed(Period(), 2, whole[1][:3]) == whole[2:]
    in_all = await database.run(lambda unit: unit.usage.by(["tenant"], "", 10))
    by_hours = await database.run(lambda unit: unit.usage.by(["tenant"], "", 10, Period(since=before)))
    assert in_all == by_hours
    assert await database.run(lambda unit: unit.usage.prune_hours(hour)) == 2
    assert await listed(Period()) == whole[2:]


async def test_host_memory_counts_for_the_owner_once_a_node(database: Database) -> None:
    def prepare(unit: Unit) -> None:
        add_version(unit, "f", "v1")
        add_version(unit, "g", "w1")
        for node in ("n0", "n1", "n2"):
            add_node(unit, node)
        rows = [
            # On two devices of a node there is still one copy in its host memory.
            ("n0", "v1", "", "HOST"), ("n0", "v1", "gpu0", "DEVICE"), ("n0", "v1", "gpu1", "EXECUTING"),
            ("n1", "v1", "", "HOST"), ("n2", "v1", "", "HOST"), ("n1", "w1", "", "DISK"),
        ]  # fmt: skip
        for node, version_id, device, state in rows:
            unit.session.execute(
                text("INSERT INTO placements VALUES (:n, :v, :d, :s, 100, '', 0, now())"),
                {"n": node, "v": version_id, "d": device, "s": state},
            )
        unit.session.execute(text("UPDATE nodes SET state = 'LOST' WHERE node_id = 'n2'"))
        unit.usage.add([usage("a", tenant="caller", recorded_at=NOW)])

    def billed(period: Period, unit: Unit) -> list[tuple[dict[str, str], UsageSum]]:
        return unit.usage.by(["tenant", "function"], "", 10, period)

    await database.run(prepare)
    for _ in range(2):
        await database.run(lambda unit: unit.usage.accrue_host_memory(NOW, 10.0))
    for period in (Period(), Period(since=NOW - timedelta(hours=1))):
        found = await database.run(partial(billed, period))
        told = [(key["tenant"], key["function"], s.requests, s.device_ms, s.host_ms, s.host_byte_s) for key, s in found]
        assert told == [("caller", "f", 1, 2.0, 0.0, 0.0), (DEFAULT_TENANT, "f", 0, 0.0, 40_000.0, 4_000.0)]


async def test_ledgers_are_bounded_and_totals_stay(database: Database) -> None:
    def fill(unit: Unit) -> None:
        for i in range(30):
            unit.events.add(NOW, "function.deployed", f"f{i}", "x\x00y")
            unit.usage.add([usage(f"r{i}", recorded_at=NOW + timedelta(seconds=i))])

    await database.run(fill)
    assert await database.run(lambda unit: unit.events.prune(10)) == 20
    newest = await database.run(lambda unit: unit.events.newest("", 100))
    assert [event.subject for event in newest] == [f"f{i}" for i in range(29, 19, -1)]
    assert await database.run(lambda unit: unit.usage.prune(10, NOW - timedelta(days=1))) == 20
    assert await database.run(lambda unit: unit.usage.prune(10, NOW + timedelta(seconds=24))) == 5
    assert (await database.run(lambda unit: unit.usage.total("f", ["v1"]))).requests == 30


async def test_ended_instances_are_bounded_by_version_and_live_ones_stay(database: Database) -> None:
    def fill(unit: Unit) -> None:
        add_node(unit, "n0")
        for v, version_id in enumerate(("v1", "v2")):
            add_version(unit, f"f{v}", version_id)
            for i in range(6):
                add_instance(unit, v * 10 + i, version_id, "READY" if i == 0 else "FAILED")

    await database.run(fill)
    assert await database.run(lambda unit: unit.instances.prune(2)) == 6
    left = await database.run(lambda unit: unit.instances.listed("", True))
    assert [row.instance_id for row in left] == ["i0", "i4", "i5", "i10", "i14", "i15"]
    views = await database.run(lambda unit: unit.instances.live_and_latest())
    assert [row.instance_id for row in views] == ["i0", "i5", "i10", "i15"]


async def test_a_deadlock_is_retried_and_both_succeed(database: Database) -> None:
    await database.run(lambda unit: [add_node(unit, "a"), add_node(unit, "b")])
    both = threading.Barrier(2, timeout=10)
    first = {"one": True, "two": True}

    def lock(unit: Unit, who: str, order: tuple[str, str]) -> None:
        unit.nodes.get(order[0], lock=True)
        if first[who]:
            first[who] = False
            both.wait()
        node = unit.nodes.get(order[1], lock=True)
        assert node is not None
        node.router_address += who

    await asyncio.gather(
        database.run(lambda unit: lock(unit, "one", ("a", "b"))),
        database.run(lambda unit: lock(unit, "two", ("b", "a"))),
    )
    addresses = await database.run(lambda unit: sorted(node.router_address for node in unit.nodes.all()))
    assert addresses == ["rone", "rtwo"]


async def test_a_commit_is_told_even_if_its_caller_is_gone(postgres_url: str) -> None:
    migrate.upgrade(postgres_url)
    told: asyncio.Queue[Unit] = asyncio.Queue()
    database = Database(postgres_url, on_commit=told.put_nowait)
    begun, go = threading.Event(), threading.Event()

    def work(unit: Unit) -> None:
        begun.set()
        assert go.wait(10)
        unit.record(NOW, "function.deployed", "f", "")

    try:
        task = asyncio.create_task(database.run(work))
        assert await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        go.set()
        async with asyncio.timeout(10):
            unit = await told.get()
        assert [event.subject for event in unit.recorded] == ["f"]
    finally:
        await database.close()


async def test_a_failed_transaction_leaves_and_tells_nothing(postgres_url: str) -> None:
    migrate.upgrade(postgres_url)
    told: list[Unit] = []
    database = Database(postgres_url, on_commit=told.append)

    def work(unit: Unit) -> None:
        unit.record(NOW, "function.deployed", "f", "")
        unit.session.flush()
        raise LookupError("no")

    try:
        with pytest.raises(LookupError):
            await database.run(work)
        assert await database.run(lambda unit: unit.events.newest("", 10)) == []
        assert told == []
    finally:
        await database.close()


async def test_generations_rise_over_rollbacks_and_connections(postgres_url: str) -> None:
    migrate.upgrade(postgres_url)
    seen: list[int] = []
    for _ in range(3):
        database = Database(postgres_url)
        seen.append(await database.run(lambda unit: unit.next_generation(), isolation="REPEATABLE READ"))

        def roll_back(unit: Unit) -> None:
            unit.next_generation()
            raise LookupError

        with pytest.raises(LookupError):
            await database.run(roll_back)
        await database.close()
    assert seen == sorted(set(seen))


async def test_one_writer_at_a_time_and_the_next_when_its_connection_ends(postgres_url: str) -> None:
    one, two = WriterLock(postgres_url), WriterLock(postgres_url)
    assert await one.hold()
    assert await one.hold()
    assert not await two.hold()
    await one.release()
    assert await two.hold()
    assert not await one.hold()
    database = Database(postgres_url)
    writers = "datname = current_database() AND application_name LIKE '%-writer'"
    kill = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {writers}"
    await database.run(lambda unit: unit.session.execute(text(kill)))
    with pytest.raises(Unavailable):
        await two.hold()
    assert await one.hold()
    await one.release()
    await two.release()
    await database.close()


async def test_connections_that_died_are_replaced(database: Database) -> None:
    await database.check()
    others = "pid <> pg_backend_pid() AND datname = current_database()"
    kill = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
    await asyncio.gather(*(database.check() for _ in range(4)))
    await database.run(lambda unit: unit.session.execute(text(kill)))
    for _ in range(8):
        await database.check()


async def test_no_database_is_a_typed_error_without_the_password() -> None:
    database = Database("postgresql://rouse:hidden@127.0.0.1:9/rouse")
    with pytest.raises(Unavailable) as caught:
        await database.check()
    assert caught.value.reason == "DATABASE_DOWN"
    assert "hidden" not in str(caught.value)
    await database.close()
