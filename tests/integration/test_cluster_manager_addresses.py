"""Virtual addresses of models: given once, recorded, never overlapping, given back with the artefact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from sqlalchemy import Engine, create_engine, exc, text

from rouse_common.errors import ResourceExhausted
from rouse_contracts import functions
from rouse_policy import addresses
from rouse_store import Database, Unit, migrate
from rouse_store.models import ADDRESS_BASE, ADDRESS_END, ADDRESS_GRANULE
from rouse_testkit.control_plane import ControlPlane, control_plane, digest_of

NOW = datetime(2026, 11, 21, tzinfo=UTC)
GRANULE = addresses.GRANULE_BYTES


@pytest.fixture
async def plane(postgres_url: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(postgres_url, "nats://127.0.0.1:9", node_lost_ms=60_000) as plane:
        yield plane


@pytest.fixture
def engine(postgres_url: str) -> Engine:
    migrate.upgrade(postgres_url)
    return create_engine(postgres_url)


def end(range_: functions.AddressRange) -> int:
    return range_.base + range_.weights_bytes + range_.state_bytes + range_.scratch_bytes


def test_the_policy_and_the_database_mean_the_same_addresses() -> None:
    assert (addresses.BASE, addresses.END, addresses.GRANULE_BYTES) == (ADDRESS_BASE, ADDRESS_END, ADDRESS_GRANULE)


async def test_deployments_at_once_get_ranges_that_do_not_overlap(plane: ControlPlane) -> None:
    versions = await asyncio.gather(*(plane.deploy(f"f{number}") for number in range(24)))
    ranges = sorted((version.addresses for version in versions), key=lambda range_: range_.base)
    assert ranges[0].base == ADDRESS_BASE
    assert all(end(one) <= other.base for one, other in pairwise(ranges))
    assert end(ranges[-1]) <= ADDRESS_END
    assert all(range_.weights_bytes == GRANULE and range_.scratch_bytes for range_ in ranges)


async def test_a_range_stays_over_versions_and_a_restart_and_belongs_to_the_artefact(plane: ControlPlane) -> None:
    first = await plane.deploy("f", "one")
    again, other, shared = (
        await plane.deploy("f", "one"),
        await plane.deploy("f", "two"),
        await plane.deploy("g", "one"),
    )
    assert first.addresses == again.addresses == shared.addresses
    assert other.addresses.base >= end(first.addresses)
    await plane.stop()
    await plane.start()
    await plane.serving()
    described = await plane.function("f")
    assert [version.addresses for version in described.versions] == [first.addresses, again.addresses, other.addresses]
    (route,) = [route for route in (await plane.table()).functions if route.name == "g"]
    assert route.versions[0].addresses == first.addresses


async def test_a_deleted_artefact_gives_its_range_back(plane: ControlPlane, postgres_url: str) -> None:
    await plane.deploy("f", "one")
    kept = await plane.deploy("g", "two")
    await plane.delete("f")
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT artefact_digest, base FROM address_ranges")).all()
    engine.dispose()
    assert [tuple(row) for row in rows] == [(digest_of("two"), kept.addresses.base)]


async def test_without_addresses_a_deployment_is_refused_and_leaves_nothing(
    plane: ControlPlane, postgres_url: str
) -> None:
    engine = create_engine(postgres_url)
    size = ADDRESS_END - ADDRESS_BASE
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO artefacts VALUES (:digest, 'PYTHON', 1, 0, '', '{}', false, now())"),
            {"digest": digest_of("large")},
        )
        connection.execute(
            text("INSERT INTO address_ranges VALUES (:digest, :base, 0, 0, :size)"),
            {"digest": digest_of("large"), "base": ADDRESS_BASE, "size": size},
        )
    engine.dispose()
    with pytest.raises(ResourceExhausted) as caught:
        await plane.deploy("f")
    assert caught.value.reason == "ADDRESSES_EXHAUSTED"
    assert "the largest gap between 1 ranges has 0 B" in caught.value.message
    assert plane.repository.deleted == [digest_of("f")]


BAD_RANGES = [
    (ADDRESS_BASE + GRANULE, 0, GRANULE, GRANULE, "no_overlap"),  # begins inside of the one there is
    (ADDRESS_BASE - GRANULE, GRANULE, 0, 0, "bounds"),
    (ADDRESS_END - GRANULE, GRANULE, GRANULE, 0, "bounds"),
    (ADDRESS_BASE + 8 * GRANULE + 4096, GRANULE, 0, 0, "alignment"),
    (ADDRESS_BASE + 8 * GRANULE, GRANULE, 4096, 0, "alignment"),
    (ADDRESS_BASE + 8 * GRANULE, 2 * GRANULE, -GRANULE, 0, "bytes"),
    (ADDRESS_BASE + 8 * GRANULE, 0, 0, 0, "size"),
]


@pytest.mark.parametrize(("base", "weights", "state", "scratch", "constraint"), BAD_RANGES)
def test_the_database_refuses_what_must_not_be(
    engine: Engine, base: int, weights: int, state: int, scratch: int, constraint: str
) -> None:
    insert = text("INSERT INTO address_ranges VALUES (:digest, :base, :weights, :state, :scratch)")
    artefact = text("INSERT INTO artefacts VALUES (:digest, 'PYTHON', 1, 0, '', '{}', false, now())")
    with engine.begin() as connection:
        for name in ("there", "new"):
            connection.execute(artefact, {"digest": digest_of(name)})
        values = {"base": ADDRESS_BASE, "weights": GRANULE, "state": GRANULE, "scratch": GRANULE}
        connection.execute(insert, {"digest": digest_of("there")} | values)
    values = {"base": base, "weights": weights, "state": state, "scratch": scratch}
    with pytest.raises(exc.IntegrityError, match=constraint), engine.begin() as connection:
        connection.execute(insert, {"digest": digest_of("new")} | values)
    engine.dispose()


async def test_who_meets_another_s_addresses_tries_again(postgres_url: str) -> None:
    """Even a writer that does not take the lock cannot make two ranges overlap."""
    migrate.upgrade(postgres_url)
    store = Database(postgres_url)
    attempts: list[int] = []

    def work(unit: Unit) -> None:
        row = unit.functions.store_artefact(_artefact("one" if not attempts else "two"))
        attempts.append(len(attempts))
        base = ADDRESS_BASE + (0 if len(attempts) < 3 else 4 * GRANULE)
        unit.addresses.give(row, base, GRANULE, 0, 0)

    await store.run(work)
    await store.run(work)
    assert len(attempts) == 3
    await store.close()


def _artefact(name: str) -> dict[str, object]:
    return {
        "digest": digest_of(name), "format": "PYTHON", "artefact_bytes": 1, "weights_bytes": 0, "architecture": "",
        "signature": {}, "created_at": NOW,
    }  # fmt: skip


def test_artefacts_of_older_meshes_are_given_ranges_by_the_migration(postgres_url: str) -> None:
    from alembic import command

    migrate.upgrade(postgres_url)
    engine = create_engine(postgres_url)
    sizes = {"a": 0, "b": 100, "c": GRANULE, "d": 3 << 30, "e": 200 << 30}
    with engine.begin() as connection:
        config = migrate.alembic_config(connection)
        command.downgrade(config, "0007")
        for second, (name, weights) in enumerate(sizes.items()):
            connection.execute(
                text("INSERT INTO artefacts VALUES (:d, 'PYTHON', 1, :w, '', '{}', false, to_timestamp(:t))"),
                {"d": digest_of(name), "w": weights, "t": second},
            )
        command.upgrade(config, "head")
        rows = {row.artefact_digest: row for row in connection.execute(text("SELECT * FROM address_ranges"))}
    engine.dispose()
    taken: list[addresses.Extent] = []
    for name, weights in sizes.items():
        snapshot = addresses.Snapshot(tuple(taken), weights)
        decision, _ = addresses.decide(snapshot, addresses.State(), addresses.Settings(), 0.0)
        row, regions = rows[digest_of(name)], decision.regions
        assert row.base == decision.base
        assert (row.weights_bytes, row.state_bytes) == (regions.weights_bytes, regions.state_bytes)
        assert row.scratch_bytes == regions.scratch_bytes
        taken.append(addresses.Extent(row.base, regions.size_bytes))
