"""Functions, versions and instances through cluster-manager's RPCs, on a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rouse_common.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RouseError,
    Unavailable,
)
from rouse_contracts import cluster, functions
from rouse_testkit.control_plane import MIB, ControlPlane, NodeServices, control_plane, digest_of

SLEEPING, WAKING = functions.FUNCTION_STATE_SLEEPING, functions.FUNCTION_STATE_WAKING
READY, FAILED = functions.FUNCTION_STATE_READY, functions.FUNCTION_STATE_FAILED


@pytest.fixture
def no_nats() -> str:
    """NATS is not needed to serve."""
    return "nats://127.0.0.1:9"


@pytest.fixture
async def plane(postgres_url: str, no_nats: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(postgres_url, no_nats, node_lost_ms=60_000) as plane:
        yield plane


@pytest.fixture
async def node(plane: ControlPlane) -> NodeServices:
    node = await plane.node("n0")
    await plane.register(node)
    await plane.beat(node)
    return node


async def refused(action: Any, kind: type[RouseError], reason: str) -> RouseError:
    with pytest.raises(kind) as caught:
        await action
    assert caught.value.reason == reason
    return caught.value


async def kinds(plane: ControlPlane, subject: str) -> list[str]:
    response = await plane.call("ListEvents", cluster.ListEventsRequest(subject=subject))
    return [event.kind for event in response.events]


async def test_versions_count_up_and_the_newest_is_active(plane: ControlPlane) -> None:
    first = await plane.deploy("f", queue_capacity=7)
    second = await plane.deploy("f", "other")
    assert (first.version, second.version) == (1, 2)
    assert first.spec.queue_capacity == 7
    assert first.spec.signature.inputs[0].name == "x"
    assert (first.weights_bytes, first.artefact_bytes) == (MIB, MIB + 100)
    described = await plane.function("f")
    assert list(described.versions) == [first, second]
    assert described.function.active_version == second
    assert described.function.state == SLEEPING
    await plane.deploy("a")
    listed = await plane.call("ListFunctions", cluster.ListFunctionsRequest())
    assert [summary.name for summary in listed.functions] == ["a", "f"]
    (route,) = [route for route in (await plane.table()).functions if route.name == "f"]
    assert list(route.versions) == [first, second]
    assert route.active_version_id == second.version_id


async def test_deploying_one_name_at_once_gives_each_its_version(plane: ControlPlane) -> None:
    versions = await asyncio.gather(*(plane.deploy("f") for _ in range(8)))
    assert sorted(version.version for version in versions) == list(range(1, 9))
    assert len({version.version_id for version in versions}) == 8
    described = await plane.function("f")
    assert described.function.active_version.version == 8


async def test_what_cannot_be_deployed_is_refused_and_leaves_nothing(plane: ControlPlane, node: NodeServices) -> None:
    request = cluster.CreateVersionRequest(spec=functions.FunctionSpec(name="f"), artefact_digest=digest_of("nobody"))
    error = await refused(plane.call("CreateVersion", request), FailedPrecondition, "ARTEFACT_NOT_FOUND")
    assert digest_of("nobody") in error.message
    await refused(plane.deploy("a/b"), InvalidArgument, "BAD_NAME")
    await refused(plane.deploy("f", handler="x"), InvalidArgument, "BAD_SPEC")
    request.artefact_digest = "../x"
    await refused(plane.call("CreateVersion", request), InvalidArgument, "BAD_DIGEST")
    plane.repository.hold("huge", 99)
    error = await refused(
        plane.deploy("f", "huge", resources=functions.Resources(working_memory_bytes=2 * MIB)),
        FailedPrecondition, "MODEL_TOO_LARGE",
    )  # fmt: skip
    for words in ("gpu0 of node n0", "100.0 MiB", "99.0 MiB", "2.0 MiB"):
        assert words in error.message
    assert digest_of("huge") not in plane.repository.artefacts
    plane.repository.away = True
    await refused(plane.deploy("f"), Unavailable, "REPOSITORY_AWAY")
    await refused(plane.function("f"), NotFound, "FUNCTION_NOT_FOUND")


async def test_without_nodes_any_size_can_be_deployed_but_not_placed(plane: ControlPlane) -> None:
    plane.repository.hold("huge", 5000)
    version = await plane.deploy("f", "huge")
    error = await refused(plane.place(version), Unavailable, "NO_NODE")
    assert error.retry_after_s
    node = await plane.node("n0")
    await plane.register(node)
    await refused(plane.place(version), FailedPrecondition, "MODEL_TOO_LARGE")


async def test_an_instance_s_life_shows_in_the_function_s_state(plane: ControlPlane, node: NodeServices) -> None:
    version = await plane.deploy("f")
    placed = await plane.place(version)
    instance = placed.instance
    assert placed.version == version
    assert placed.coordinator_address == node.address
    assert "100.0 MiB free" in placed.placement_reason
    assert instance.state == cluster.INSTANCE_STATE_PENDING
    assert (await plane.function("f")).function.state == WAKING
    assert not (await plane.table()).functions[0].instances
    await plane.report(instance, "STARTING")
    assert (await plane.function("f")).function.state == WAKING
    await plane.report(instance, "READY")
    summary = (await plane.function("f")).function
    assert (summary.state, summary.ready_instances) == (READY, 1)
    assert [entry.instance_id for entry in (await plane.table()).functions[0].instances] == [instance.instance_id]
    await plane.report(instance, "STOPPING")
    assert not (await plane.table()).functions[0].instances
    await plane.report(instance, "ENDED", "idle for 300 s")
    summary = (await plane.function("f")).function
    assert (summary.state, summary.reason) == (SLEEPING, "idle for 300 s")
    assert await plane.instances() == {}
    assert (await plane.instances(ended=True))[instance.instance_id].reason == "idle for 300 s"
    assert await kinds(plane, "f") == [
        "instance.ended", "instance.stopping", "instance.ready", "instance.created", "function.deployed",
    ]  # fmt: skip


async def test_a_failed_start_is_the_function_s_state_until_the_next_start(
    plane: ControlPlane, node: NodeServices
) -> None:
    version = await plane.deploy("f")
    instance = (await plane.place(version)).instance
    await plane.report(instance, "FAILED", "No module named 'x'\x00")
    route = (await plane.table()).functions[0]
    assert (route.state, route.reason) == (FAILED, "No module named 'x'�")
    second = (await plane.place(version)).instance
    assert (await plane.table()).functions[0].state == WAKING
    await plane.report(second, "READY")
    await plane.report(second, "FAILED", "signal 9")
    summary = (await plane.function("f")).function
    assert (summary.state, summary.reason) == (SLEEPING, "signal 9")


async def test_a_terminal_state_stays_and_late_reports_are_no_error(plane: ControlPlane, node: NodeServices) -> None:
    instance = (await plane.place(await plane.deploy("f"))).instance
    await plane.report(instance, "READY")
    await plane.report(instance, "STARTING")
    assert (await plane.instances())[instance.instance_id].state == cluster.INSTANCE_STATE_READY
    await plane.report(instance, "FAILED", "first")
    for state in ("READY", "STOPPING", "ENDED", "LOST", "FAILED"):
        await plane.report(instance, state, "late")
    found = (await plane.instances(ended=True))[instance.instance_id]
    assert (found.state, found.reason) == (cluster.INSTANCE_STATE_FAILED, "first")


async def test_reports_that_make_no_sense_are_refused(plane: ControlPlane, node: NodeServices) -> None:
    instance = (await plane.place(await plane.deploy("f"))).instance
    await refused(plane.report(instance, "PENDING"), InvalidArgument, "BAD_STATE")
    await refused(plane.report(instance, "UNSPECIFIED"), InvalidArgument, "BAD_STATE")
    await refused(plane.report(cluster.Instance(instance_id="no"), "READY"), NotFound, "INSTANCE_NOT_FOUND")
    await refused(plane.place(functions.FunctionVersion(version_id="no")), NotFound, "VERSION_NOT_FOUND")


async def test_the_limit_of_instances_holds_against_concurrent_calls(plane: ControlPlane, node: NodeServices) -> None:
    version = await plane.deploy("f", scaling=functions.Scaling(max_instances=3))
    outcomes = await asyncio.gather(*(plane.place(version) for _ in range(10)), return_exceptions=True)
    refusals = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(outcomes) - len(refusals) == 3
    assert {type(r) for r in refusals} == {ResourceExhausted}
    assert {r.reason for r in refusals if isinstance(r, ResourceExhausted)} == {"INSTANCE_LIMIT"}
    assert len(await plane.instances()) == 3
    one = next(iter((await plane.instances()).values()))
    await plane.report(one, "ENDED")
    await plane.place(version)
    await refused(plane.place(version), ResourceExhausted, "INSTANCE_LIMIT")


async def test_the_limit_is_each_version_s_own(plane: ControlPlane, node: NodeServices) -> None:
    first = await plane.deploy("f")
    old = await plane.run_instance(first, node)
    second = await plane.deploy("f", "other")
    assert (await plane.function("f")).function.state == SLEEPING
    new = await plane.run_instance(second, node)
    route = (await plane.table()).functions[0]
    assert {(e.instance_id, e.version_id) for e in route.instances} == {
        (old.instance_id, first.version_id),
        (new.instance_id, second.version_id),
    }


async def test_an_instance_goes_where_its_weights_are(plane: ControlPlane, node: NodeServices) -> None:
    near = await plane.node("n1")
    await plane.register(near)
    version = await plane.deploy("f", scaling=functions.Scaling(max_instances=9))
    twin = await plane.deploy("g", "f")
    assert (await plane.place(version)).instance.node_id == "n0"
    near.hold(version, "HOST")
    await plane.beat(near)
    placed = await plane.place(version)
    assert placed.instance.node_id == "n1"
    assert "host memory" in placed.placement_reason
    assert (await plane.place(twin)).instance.node_id == "n1", "the artefact counts, not the version"


async def test_starts_that_failed_send_the_next_one_elsewhere(plane: ControlPlane, node: NodeServices) -> None:
    other = await plane.node("n1")
    await plane.register(other)
    version = await plane.deploy("f")
    first = (await plane.place(version)).instance
    assert first.node_id == "n0"
    await plane.report(first, "FAILED", "no room")
    assert (await plane.place(version)).instance.node_id == "n1"


async def test_instances_nobody_starts_are_given_up(postgres_url: str, no_nats: str) -> None:
    async with control_plane(postgres_url, no_nats, pending_limit_s=0.2, start_limit_s=0.2) as plane:
        node = await plane.node("n0")
        await plane.register(node)
        version = await plane.deploy("f", scaling=functions.Scaling(max_instances=2))
        never = (await plane.place(version)).instance
        slow = (await plane.place(version)).instance
        await plane.report(slow, "STARTING")
        ended = await plane.becomes(
            lambda: plane.instances(ended=True),
            lambda found: all(i.state == cluster.INSTANCE_STATE_FAILED for i in found.values()),
        )
        assert "PENDING" in ended[never.instance_id].reason
        assert "STARTING" in ended[slow.instance_id].reason
        assert (await plane.function("f")).function.state == FAILED


def usage(request_id: str, **fields: Any) -> cluster.UsageRecord:
    values: dict[str, Any] = {
        "function": "f",
        "node_id": "n0",
        "device": "gpu0",
        "device_ms": 2.0,
        "swap_ms": 1.0,
        "swapped_in": True,
    }
    return cluster.UsageRecord(request_id=request_id, **(values | fields))


async def test_usage_counts_each_request_once(plane: ControlPlane) -> None:
    version = await plane.deploy("f")
    records = [usage(f"r{i}", version_id=version.version_id, status_code=i % 2) for i in range(10)]
    records.append(usage("by a user\x00" + "x" * 1000, version_id=version.version_id))
    for _ in range(2):
        await plane.call("RecordUsage", cluster.RecordUsageRequest(records=records))
    total = (await plane.function("f")).usage
    assert (total.requests, total.failures, total.swap_ins) == (11, 5, 11)
    assert (total.device_ms, total.swap_ms) == (22.0, 11.0)
    too_many = cluster.RecordUsageRequest(records=[usage(str(i)) for i in range(1001)])
    await refused(plane.call("RecordUsage", too_many), InvalidArgument, "TOO_MANY_RECORDS")
    for bad in (usage(""), usage("r", function=""), usage("r", device_ms=float("nan")), usage("r", queue_ms=-1.0)):
        request = cluster.RecordUsageRequest(records=[bad])
        await refused(plane.call("RecordUsage", request), InvalidArgument, "BAD_USAGE")


async def test_usage_says_whose_requests_they_were_after_the_function_is_gone(plane: ControlPlane) -> None:
    version = await plane.deploy("f")
    records = [usage(f"r{i}", version_id=version.version_id, tenant="ab"[i % 2]) for i in range(5)]
    await plane.call("RecordUsage", cluster.RecordUsageRequest(records=records))
    await plane.call("DeleteFunction", cluster.DeleteFunctionRequest(name="f"))

    async def listed(**fields: Any) -> list[tuple[str, str, int]]:
        answer = await plane.call("GetUsage", cluster.GetUsageRequest(**fields))
        return [(row.tenant, row.function, row.usage.requests) for row in answer.rows]

    assert await listed() == [("a", "f", 3), ("b", "f", 2)]
    assert await listed(tenant="b") == [("b", "f", 2)]
    assert await listed(grouping=functions.USAGE_GROUPING_FUNCTION) == [("", "f", 5)]
    assert await listed(grouping=functions.USAGE_GROUPING_TENANT) == [("a", "", 3), ("b", "", 2)]
    await refused(listed(grouping=7), InvalidArgument, "BAD_GROUPING")


async def test_bills_of_a_period_come_in_pages_and_add_up(plane: ControlPlane) -> None:
    version = await plane.deploy("f")
    # More rows of hours than one answer holds: each tenant's in one hour.
    for part in range(3):
        records = [usage(f"r{part}-{i}", version_id=version.version_id, tenant=f"t{part}-{i:03}") for i in range(500)]
        await plane.call("RecordUsage", cluster.RecordUsageRequest(records=records))
    request = cluster.GetUsageRequest(grouping=functions.USAGE_GROUPING_HOUR)
    found: list[functions.UsageRow] = []
    while not found or request.page_token:
        answer = await plane.call("GetUsage", request)
        found += answer.rows
        request.page_token = answer.next_page_token
    assert len(found) == 1500
    assert len({row.tenant for row in found}) == 1500
    assert sum(row.usage.billed_ms for row in found) == pytest.approx(3000.0)
    hours = {row.hour.seconds for row in found}
    assert all(hour % 3600 == 0 for hour in hours)

    async def in_all(since: int, until: int) -> int:
        asked = cluster.GetUsageRequest(grouping=functions.USAGE_GROUPING_FUNCTION)
        asked.since.FromSeconds(since)
        asked.until.FromSeconds(until)
        return sum(row.usage.requests for row in (await plane.call("GetUsage", asked)).rows)

    assert await in_all(min(hours), max(hours) + 3600) == 1500
    assert await in_all(min(hours) - 3600, min(hours)) == 0
    await refused(in_all(3600, 3600), InvalidArgument, "BAD_PERIOD")
    await refused(in_all(3600, 3600 + 60), InvalidArgument, "BAD_PERIOD")
    for token in ("?", "x" * 5000, "WzEsMiwzXQ==", "W1tbW10=", "WyIyMDI2LTExLTAxIiwiYSIsImIiXQ=="):
        bad = cluster.GetUsageRequest(grouping=functions.USAGE_GROUPING_HOUR, page_token=token)
        await refused(plane.call("GetUsage", bad), InvalidArgument, "BAD_PAGE")


async def test_events_are_newest_first_and_limited(plane: ControlPlane) -> None:
    for name in ("f", "g", "f"):
        await plane.deploy(name)

    async def listed(**fields: Any) -> list[str]:
        response = await plane.call("ListEvents", cluster.ListEventsRequest(**fields))
        return [f"{event.subject} {event.message[:9]}" for event in response.events]

    assert await listed() == ["f version 2", "g version 1", "f version 1"]
    assert await listed(subject="f", limit=1) == ["f version 2"]
    await refused(listed(limit=1001), InvalidArgument, "BAD_LIMIT")
