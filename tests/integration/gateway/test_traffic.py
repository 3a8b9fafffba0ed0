"""Traffic between versions through the gateway: chosen for each request, in force when a call returns."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from rouse_contracts import functions
from rouse_testkit.front import Front, refused

Code = grpc.StatusCode


@pytest.fixture
async def two(front: Front) -> Front:
    """Function f with two versions that are both ready; the bus is silent, so the gateway has to ask."""
    for number in (1, 2):
        front.control.add_function("f")
        front.control.set_ready("f", "n0", f"f-{number}")
    await front.publish()
    front.control.bus = None
    return front


async def split(front: Front, percents: dict[int, int]) -> functions.FunctionSummary:
    shares = [functions.TrafficShare(version=version, percent=percent) for version, percent in percents.items()]
    request = functions.SetTrafficRequest(name="f", shares=shares)
    return (await front.mesh.SetTraffic(request, timeout=5)).function


async def versions(front: Front, count: int = 40) -> set[str]:
    return {(await front.infer("f", 1.0)).version for _ in range(count)}


async def test_traffic_holds_for_every_request_after_the_call(two: Front) -> None:
    assert await versions(two, 5) == {"2"}
    summary = await split(two, {1: 100})
    assert summary.active_version.version == 1
    assert await versions(two, 5) == {"1"}
    summary = await split(two, {1: 50, 2: 50})
    assert [(share.version, share.percent) for share in summary.traffic] == [(1, 50), (2, 50)]
    assert await versions(two) == {"1", "2"}
    assert (await two.infer("f", 1.0, version="1")).version == "1"
    back = await two.mesh.RollBack(functions.RollBackRequest(name="f"), timeout=5)
    assert back.function.active_version.version == 1
    assert await versions(two, 5) == {"1"}


async def test_every_version_with_traffic_is_woken(front: Front) -> None:
    for _ in range(2):
        front.control.add_function("f")
    await front.publish()
    await split(front, {1: 50, 2: 50})
    assert await versions(front) == {"1", "2"}
    assert {version_id or "f-2" for _, version_id in front.control.wakes} == {"f-1", "f-2"}


async def test_a_named_version_that_cannot_load_says_so(front: Front) -> None:
    for _ in range(2):
        front.control.add_function("f")

    async def breaks(name: str, version_id: str) -> None:
        failed = (functions.FUNCTION_STATE_FAILED, "ValueError: no weights")
        front.control.functions[name].version_states[version_id] = failed
        await front.control.changed()

    front.control.on_wake = breaks
    await front.publish()
    wake = functions.WakeFunctionRequest(name="f", version="1")
    for call in (front.infer("f", 1.0, version="1", timeout=30), front.mesh.WakeFunction(wake, timeout=30)):
        code, details, text = await refused(call)
        assert (code, details.reason) == (Code.FAILED_PRECONDITION, "LOAD_FAILED")
        assert "version 1" in text
        assert "ValueError: no weights" in text
    assert details.metadata["version"] == "1"


async def test_a_version_that_is_woken_by_its_number(front: Front) -> None:
    for _ in range(2):
        front.control.add_function("f")
    await front.publish()
    await front.mesh.WakeFunction(functions.WakeFunctionRequest(name="f", version="1"), timeout=10)
    assert front.control.wakes == [("f", "f-1")]
    code, details, _ = await refused(
        front.mesh.WakeFunction(functions.WakeFunctionRequest(name="f", version="9"), timeout=10)
    )
    assert (code, details.reason) == (Code.NOT_FOUND, "VERSION_NOT_FOUND")


async def test_changes_at_once_end_with_one_of_them(two: Front) -> None:
    await asyncio.gather(split(two, {1: 100}), split(two, {2: 100}), split(two, {1: 50, 2: 50}))
    assert await versions(two, 10) <= {"1", "2"}
