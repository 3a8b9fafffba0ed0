"""Deleting functions: everything goes, whatever is away meanwhile, and nothing of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import create_engine, text

from rouse_common.errors import DeadlineExceeded, FailedPrecondition, NotFound
from rouse_contracts import cluster, functions
from rouse_testkit.control_plane import ControlPlane, NodeServices, control_plane, digest_of

LEDGERS = {"usage_hours", "usage_records", "usage_totals", "events", "alembic_version"}
NO_NATS = "nats://127.0.0.1:9"


@pytest.fixture
async def plane(postgres_url: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(postgres_url, NO_NATS, node_lost_ms=60_000) as plane:
        yield plane


async def registered(plane: ControlPlane, node_id: str = "n0") -> NodeServices:
    node = await plane.node(node_id)
    await plane.register(node)
    await plane.beat(node)
    return node


def row_counts(url: str) -> dict[str, int]:
    """Rows of every table that is no ledger."""
    engine = create_engine(url)
    with engine.begin() as connection:
        tables = connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all()
        counts = {table: connection.scalar(text(f"SELECT count(*) FROM {table}")) for table in set(tables) - LEDGERS}
    engine.dispose()
    return counts


async def gone(plane: ControlPlane, name: str) -> bool:
    try:
        await plane.function(name)
    except NotFound:
        return True
    return False


async def test_everything_of_a_function_goes_and_nothing_of_others(plane: ControlPlane, postgres_url: str) -> None:
    node = await registered(plane)
    stays = await plane.deploy("stays")
    kept = await plane.run_instance(stays, node)
    node.hold(stays, "HOST")
    await plane.beat(node)
    before = row_counts(postgres_url)

    versions = [await plane.deploy("goes", "one"), await plane.deploy("goes", "two")]
    instances = [await plane.run_instance(version, node) for version in versions]
    for version in versions:
        node.hold(version, "DEVICE", "gpu0")
    await plane.beat(node)
    usage = cluster.UsageRecord(request_id="r", function="goes", version_id=versions[1].version_id, device_ms=3)
    await plane.call("RecordUsage", cluster.RecordUsageRequest(records=[usage]))
    await plane.delete("goes")

    assert row_counts(postgres_url) == before
    assert sorted(node.stopped) == sorted(instance.instance_id for instance in instances)
    assert sorted(node.dropped) == sorted((v.version_id, v.artefact_digest) for v in versions)
    assert sorted(plane.repository.deleted) == sorted(v.artefact_digest for v in versions)
    assert await gone(plane, "goes")
    assert [route.name for route in (await plane.table()).functions] == ["stays"]
    assert list(await plane.instances()) == [kept.instance_id]
    with pytest.raises(NotFound) as caught:
        await plane.delete("goes")
    assert caught.value.reason == "FUNCTION_NOT_FOUND"

    response = await plane.call("ListEvents", cluster.ListEventsRequest(subject="goes"))
    assert [event.kind for event in response.events][:2] == ["function.deleted", "instance.ended"]
    again = await plane.deploy("goes", "one")
    assert again.version == 1
    assert (await plane.function("goes")).usage.requests == 0, "the bill of the old function is not the new one's"


async def test_an_artefact_that_another_function_uses_stays(plane: ControlPlane) -> None:
    node = await registered(plane)
    one, two = await plane.deploy("one", "shared"), await plane.deploy("two", "shared")
    await plane.delete("one")
    assert plane.repository.deleted == []
    assert node.dropped == [(one.version_id, "")], "the version's own memory only"
    await plane.run_instance(two, node)
    await plane.delete("two")
    assert plane.repository.deleted == [digest_of("shared")]
    assert node.dropped[1:] == [(two.version_id, digest_of("shared"))]


async def test_functions_that_share_an_artefact_can_be_deleted_at_once(plane: ControlPlane, postgres_url: str) -> None:
    await registered(plane)
    before = row_counts(postgres_url)
    names = [f"f{i}" for i in range(5)]
    await asyncio.gather(*(plane.deploy(name, "shared") for name in names))
    await asyncio.gather(*(plane.delete(name) for name in names))
    assert row_counts(postgres_url) == before
    assert digest_of("shared") in plane.repository.deleted


async def test_deleting_one_function_from_two_sides_is_one_deletion(plane: ControlPlane) -> None:
    node = await registered(plane)
    await plane.run_instance(await plane.deploy("f"), node)
    outcomes = await asyncio.gather(*(plane.delete("f") for _ in range(4)), return_exceptions=True)
    # Whoever comes after it has ended hears that there is no such function.
    assert None in outcomes
    assert all(outcome is None or isinstance(outcome, NotFound) for outcome in outcomes), outcomes
    assert len(node.stopped) == 1
    assert await gone(plane, "f")


async def test_a_function_disappears_from_routing_before_it_is_gone(plane: ControlPlane) -> None:
    node = await registered(plane)
    version = await plane.deploy("f")
    await plane.run_instance(version, node)
    node.away = True
    with pytest.raises(DeadlineExceeded):
        await plane.delete("f", timeout_s=0.5)
    assert not (await plane.table()).functions
    described = await plane.function("f")
    assert described.function.state == functions.FUNCTION_STATE_DELETING
    with pytest.raises(FailedPrecondition) as refused:
        await plane.deploy("f")
    assert refused.value.reason == "FUNCTION_DELETING"
    with pytest.raises(FailedPrecondition) as refused:
        await plane.deploy("g", "f")
    assert refused.value.reason == "ARTEFACT_NOT_FOUND"
    with pytest.raises(NotFound):
        await plane.place(version)
    node.away = False
    await plane.becomes(lambda: gone(plane, "f"), bool)
    assert (await plane.deploy("g")).version == 1


async def test_the_answer_to_a_deletion_that_takes_too_long_says_what_it_waits_for(plane: ControlPlane) -> None:
    node = await registered(plane)
    await plane.run_instance(await plane.deploy("f"), node)
    node.away = True
    with pytest.raises(DeadlineExceeded) as caught:
        await plane.delete("f", timeout_s=1.5)
    assert caught.value.reason == "DELETION_CONTINUES"
    assert "the test has sent it away" in caught.value.message


async def test_a_repository_that_is_away_delays_a_deletion(plane: ControlPlane) -> None:
    await plane.deploy("f")
    plane.repository.away = True
    with pytest.raises(DeadlineExceeded):
        await plane.delete("f", timeout_s=0.5)
    assert not await gone(plane, "f")
    plane.repository.away = False
    await plane.becomes(lambda: gone(plane, "f"), bool)
    assert plane.repository.deleted == [digest_of("f")]


async def test_a_deletion_goes_on_after_a_restart(plane: ControlPlane, postgres_url: str) -> None:
    node = await registered(plane)
    before = row_counts(postgres_url)
    version = await plane.deploy("f")
    await plane.run_instance(version, node)
    node.away = True
    with pytest.raises(DeadlineExceeded):
        await plane.delete("f", timeout_s=0.5)
    await plane.stop()
    node.away = False
    await plane.start()
    await plane.serving()
    await plane.becomes(lambda: gone(plane, "f"), bool)
    assert node.dropped[-1] == (version.version_id, digest_of("f"))
    assert plane.repository.deleted == [digest_of("f")]
    assert row_counts(postgres_url) == before


async def test_a_lost_node_does_not_block_a_deletion_and_gives_back_when_it_returns(postgres_url: str) -> None:
    async with control_plane(postgres_url, NO_NATS, heartbeat_ms=100, node_lost_ms=2000) as plane:
        node = await registered(plane)
        before = row_counts(postgres_url)
        version, reborn = await plane.deploy("f"), await plane.deploy("g", "also")
        await plane.run_instance(version, node)
        for held in (version, reborn):
            node.hold(held, "HOST")
        await plane.beat(node)
        node.away = True
        await plane.delete("f")
        await plane.delete("g")
        assert (await plane.nodes())["n0"].state == cluster.NODE_STATE_LOST
        plane.repository.hold("also")
        again = await plane.deploy("g", "also")
        node.away = False

        async def dropped() -> set[tuple[str, str]]:
            await plane.beat(node)
            return set(node.dropped)

        wanted = {(version.version_id, digest_of("f")), (reborn.version_id, "")}
        await plane.becomes(dropped, lambda got: got >= wanted)

        async def left() -> dict[str, int]:
            await plane.beat(node)
            return row_counts(postgres_url)

        await plane.becomes(left, lambda counts: counts["node_drops"] == 0)
        assert not node.report.residency
        assert (await plane.function("g")).function.active_version == again
        await plane.delete("g")
        assert row_counts(postgres_url) == before


async def test_deploying_and_deleting_one_artefact_at_once_never_leaves_a_version_without_it(
    plane: ControlPlane,
) -> None:
    for turn in range(8):
        plane.repository.hold("shared")
        await plane.deploy("old", "shared")
        outcome, _ = await asyncio.gather(plane.deploy("new", "shared"), plane.delete("old"), return_exceptions=True)
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, FailedPrecondition), f"turn {turn}: {outcome}"
            assert outcome.reason == "ARTEFACT_NOT_FOUND"
        else:
            assert digest_of("shared") in plane.repository.artefacts
            await plane.delete("new")
        assert digest_of("shared") not in plane.repository.artefacts
