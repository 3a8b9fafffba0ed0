"""scaler with several versions that have traffic, and functions that are put to sleep."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from rouse_common.errors import NotFound
from rouse_common.rpc import call
from rouse_contracts import scaling
from rouse_testkit.doubles_cluster import READY
from rouse_testkit.scaler_mesh import ScalerMesh, Start, scaler_mesh, stopped


@pytest.fixture
async def start(redis_url: str) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def make(prepare: Callable[[ScalerMesh], Awaitable[None]] | None = None, **options: Any) -> ScalerMesh:
            return await stack.enter_async_context(scaler_mesh(options.pop("redis", redis_url), prepare, **options))

        yield make


async def put_to_sleep(mesh: ScalerMesh, function: str) -> int:
    request = scaling.SleepFunctionRequest(function=function)
    return int((await call(mesh.stub.SleepFunction, request, timeout_s=10)).stopped)


def serving(mesh: ScalerMesh) -> Counter[str]:
    """Ready instances by version."""
    return Counter(x.version_id for x in mesh.control.instances.values() if x.state == READY)


async def test_every_version_with_traffic_is_kept(start: Start) -> None:
    async def split(mesh: ScalerMesh) -> None:
        for _ in range(3):
            mesh.control.deploy("f", least=1)
        mesh.control.traffic["f"] = {1: 10, 3: 90}

    mesh = await start(split)
    await mesh.control.until(lambda: serving(mesh) == {"f-v1": 1, "f-v3": 1})
    mesh.control.traffic["f"] = {}
    await mesh.control.put("f-v2", READY, age_s=100)
    await mesh.rounds(5)
    assert serving(mesh)["f-v3"] == 1
    assert stopped(mesh), "what has no traffic any more and nobody names is retired"


async def test_each_version_follows_its_own_arrivals(start: Start) -> None:
    async def split(mesh: ScalerMesh) -> None:
        for _ in range(2):
            mesh.control.deploy("f", most=8)
        mesh.control.traffic["f"] = {1: 25, 2: 75}
        # Served in 100 ms each: one instance serves ten a second.
        await mesh.arrivals("f", 40, device_ms=100)
        await mesh.arrivals("f@f-v1", 10)

    mesh = await start(split)
    for version in ("f-v1", "f-v2"):
        await mesh.wake("f", version)
    await mesh.control.until(lambda: serving(mesh)["f-v1"] >= 2 and serving(mesh)["f-v2"] >= 4)
    await mesh.rounds(3)
    assert serving(mesh) == {"f-v1": 2, "f-v2": 4}
    answer = await call(mesh.stub.ListDecisions, scaling.ListDecisionsRequest(), timeout_s=5)
    assert [(row.function, row.version) for row in answer.decisions] == [("f", 1), ("f", 2)]


async def test_what_is_put_to_sleep_sleeps_until_it_is_woken(start: Start) -> None:
    async def busy(mesh: ScalerMesh) -> None:
        mesh.control.deploy("f", most=4)
        await mesh.arrivals("f", 20, device_ms=100)

    mesh = await start(busy)
    await mesh.control.until(lambda: serving(mesh)["f-v1"] >= 2)
    assert await put_to_sleep(mesh, "f") >= 2
    assert serving(mesh) == {}
    await mesh.rounds(5)
    assert serving(mesh) == {}, "whatever came before does not wake it"
    assert "put to sleep" in (await mesh.decision("f")).reason
    assert await put_to_sleep(mesh, "f") == 0
    assert await mesh.wake("f") is True
    await mesh.control.until(lambda: serving(mesh)["f-v1"] >= 1)


async def test_the_least_number_stays_awake(start: Start) -> None:
    async def warm(mesh: ScalerMesh) -> None:
        mesh.control.deploy("f", least=1, most=4)
        for age_s in (30.0, 20.0, 10.0):
            await mesh.control.put("f-v1", READY, age_s=age_s)

    mesh = await start(warm, settle_s=600)
    assert await put_to_sleep(mesh, "f") == 2
    await mesh.rounds(3)
    assert serving(mesh) == {"f-v1": 1}
    with pytest.raises(NotFound):
        await put_to_sleep(mesh, "nobody")
