"""Traffic between versions: shares, roll-back, deployments that are repeated or change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rouse_common.errors import FailedPrecondition, InvalidArgument, NotFound, RouseError
from rouse_contracts import cluster, functions
from rouse_testkit.control_plane import ControlPlane, control_plane, digest_of


@pytest.fixture
async def plane(postgres_url: str) -> AsyncIterator[ControlPlane]:
    # NATS is not needed to serve.
    async with control_plane(postgres_url, "nats://127.0.0.1:9", node_lost_ms=60_000) as plane:
        yield plane


async def refused(action: Any, kind: type[RouseError], reason: str) -> str:
    with pytest.raises(kind) as caught:
        await action
    assert caught.value.reason == reason
    return caught.value.message


async def split(plane: ControlPlane, percents: dict[int, int]) -> functions.FunctionSummary:
    shares = [functions.TrafficShare(version=version, percent=percent) for version, percent in percents.items()]
    answer = await plane.call("SetTraffic", cluster.SetTrafficRequest(name="f", shares=shares))
    return answer.function


async def back(plane: ControlPlane) -> functions.FunctionSummary:
    return (await plane.call("RollBack", cluster.RollBackRequest(name="f"))).function


def told(function: Any) -> tuple[int, dict[int, int]]:
    return function.active_version.version, {share.version: share.percent for share in function.traffic}


async def create(plane: ControlPlane, artefact: str = "f", **fields: Any) -> cluster.CreateVersionResponse:
    plane.repository.hold(artefact)
    request = cluster.CreateVersionRequest(
        spec=functions.FunctionSpec(name="f", description=fields.pop("description", "")),
        artefact_digest=digest_of(artefact),
        **fields,
    )
    return await plane.call("CreateVersion", request)


async def test_shares_are_set_shown_and_rolled_back(plane: ControlPlane) -> None:
    for _ in range(3):
        await plane.deploy("f")
    assert told(await split(plane, {1: 90, 3: 10})) == (1, {1: 90, 3: 10})
    listed = await plane.call("ListFunctions", cluster.ListFunctionsRequest())
    assert told(listed.functions[0]) == (1, {1: 90, 3: 10})
    assert [version.version for version in listed.versions] == [3]
    (route,) = (await plane.table()).functions
    assert {share.version: share.percent for share in route.traffic} == {1: 90, 3: 10}
    # Said twice, it changes nothing, not even what it can be rolled back to.
    await split(plane, {3: 10, 1: 90})
    assert told(await back(plane)) == (3, {})
    message = await refused(back(plane), FailedPrecondition, "NOTHING_TO_ROLL_BACK")
    assert "rouse traffic" in message
    assert told(await split(plane, {2: 50, 1: 50})) == (2, {1: 50, 2: 50})
    assert told(await split(plane, {})) == (3, {}), "all to the newest"
    assert told(await back(plane)) == (2, {1: 50, 2: 50})
    kinds = [event.kind for event in (await plane.function("f")).events]
    assert kinds[:2] == ["function.rolled_back", "function.traffic"]


@pytest.mark.parametrize(
    ("shares", "words"),
    [({1: 99}, "add up to 99"), ({1: 100, 2: 100}, "add up to 200"), ({1: 0, 2: 100}, "0 percent"),
     ({1: 101}, "101 percent")],
)  # fmt: skip
async def test_bad_shares_are_refused_and_change_nothing(
    plane: ControlPlane, shares: dict[int, int], words: str
) -> None:
    for _ in range(2):
        await plane.deploy("f")
    assert words in await refused(split(plane, shares), InvalidArgument, "BAD_TRAFFIC")
    twice = [functions.TrafficShare(version=1, percent=50)] * 2
    request = cluster.SetTrafficRequest(name="f", shares=twice)
    assert "twice" in await refused(plane.call("SetTraffic", request), InvalidArgument, "BAD_TRAFFIC")
    await refused(split(plane, {7: 100}), NotFound, "VERSION_NOT_FOUND")
    await refused(plane.call("SetTraffic", cluster.SetTrafficRequest(name="g")), NotFound, "FUNCTION_NOT_FOUND")
    await refused(plane.call("RollBack", cluster.RollBackRequest(name="g")), NotFound, "FUNCTION_NOT_FOUND")
    assert told((await plane.function("f")).function) == (2, {})


async def test_a_version_without_traffic_changes_nothing_for_requests_that_name_none(plane: ControlPlane) -> None:
    first = await create(plane, without_traffic=True)
    assert first.version.version == 1
    assert told((await plane.function("f")).function) == (1, {}), "there is nothing else to serve"
    await create(plane, without_traffic=True)
    assert told((await plane.function("f")).function) == (1, {})
    await refused(back(plane), FailedPrecondition, "NOTHING_TO_ROLL_BACK")
    await create(plane)
    assert told((await plane.function("f")).function) == (3, {})
    assert told(await back(plane)) == (1, {})


async def test_a_repeated_deployment_makes_one_version(plane: ControlPlane) -> None:
    answers = await asyncio.gather(*(create(plane, deployment_id="d1") for _ in range(5)))
    assert {answer.version.version for answer in answers} == {1}
    assert not any(answer.unchanged for answer in answers)
    second = await create(plane, "other", deployment_id="d2")
    await back(plane)
    # The repetition of a deployment that came late does not take the traffic again.
    assert (await create(plane, "other", deployment_id="d2")).version == second.version
    assert told((await plane.function("f")).function) == (1, {})
    await refused(create(plane, deployment_id="a b"), InvalidArgument, "BAD_DEPLOYMENT_ID")


async def test_what_did_not_change_makes_no_version(plane: ControlPlane) -> None:
    await create(plane)
    again = await create(plane, only_if_changed=True, deployment_id="x")
    assert (again.version.version, again.unchanged) == (1, True)
    for version, answer in (
        (2, await create(plane, only_if_changed=True, description="new words")),
        (3, await create(plane, "other", only_if_changed=True)),
        (4, await create(plane, "other")),
    ):
        assert (answer.version.version, answer.unchanged) == (version, False)
    await split(plane, {2: 100})
    newest = await create(plane, "other", only_if_changed=True, without_traffic=True)
    assert (newest.version.version, newest.unchanged) == (4, True)
    assert told((await plane.function("f")).function) == (2, {})
    assert (await create(plane, "other", only_if_changed=True)).unchanged
    assert told((await plane.function("f")).function) == (4, {}), "it was deployed to serve"
