"""scaler over real gRPC and Redis, with doubles of cluster-manager and coordinators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from rouse_cache import Windows
from rouse_common.errors import FailedPrecondition, NotFound, ResourceExhausted, Unavailable
from rouse_common.rpc import call
from rouse_contracts import scaling
from rouse_scaler.app import Scaler
from rouse_scaler.config import ScalerConfig
from rouse_testkit.doubles_cluster import (
    FAILED,
    PENDING,
    READY,
    STOPPING,
    ClusterDouble,
    CoordinatorDouble,
)
from rouse_testkit.running import running
from rouse_testkit.scaler_mesh import ScalerMesh, Start, scaler_mesh, stopped


@pytest.fixture
async def start(redis_url: str) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def make(prepare: Callable[[ScalerMesh], Awaitable[None]] | None = None, **options: Any) -> ScalerMesh:
            return await stack.enter_async_context(scaler_mesh(options.pop("redis", redis_url), prepare, **options))

        yield make


# ---- wake-ups ----


async def test_a_wake_up_starts_an_instance_once(start: Start) -> None:
    mesh = await start(period_s=600)
    mesh.control.deploy("f")
    mesh.node.loads.clear()
    assert await mesh.wake("f") is True
    assert await mesh.wake("f") is False
    mesh.node.loads.set()
    await mesh.control.until(lambda: mesh.control.states("f") == {"READY": 1})
    assert await mesh.wake("f") is False
    assert mesh.control.calls["CreateInstance"] == 1


async def test_wake_ups_of_one_function_share_one_flight(start: Start) -> None:
    mesh = await start(period_s=600)
    mesh.control.deploy("f", most=50)
    outcomes = await asyncio.gather(*(mesh.wake("f") for _ in range(50)))
    assert sorted(outcomes) == [False] * 49 + [True]
    assert mesh.control.calls["CreateInstance"] == 1
    assert mesh.node.started.total() == 1


async def test_a_caller_that_gives_up_does_not_stop_the_wake_up_of_others(start: Start) -> None:
    mesh = await start(period_s=600)
    mesh.control.deploy("f")
    mesh.control.answers.clear()
    first = asyncio.create_task(mesh.wake("f"))
    await mesh.control.until(lambda: mesh.control.calls["CreateInstance"] == 1)
    second = asyncio.create_task(mesh.wake("f"))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    mesh.control.answers.set()
    assert await second is False
    await mesh.control.until(lambda: mesh.control.states("f") == {"READY": 1})
    assert mesh.node.started.total() == 1


async def test_a_wake_up_may_name_an_older_version(start: Start) -> None:
    mesh = await start(period_s=600)
    old, new = mesh.control.deploy("f"), mesh.control.deploy("f")
    assert await mesh.wake("f", old.version_id) is True
    assert await mesh.wake("f") is True
    assert {x.version_id for x in mesh.control.instances.values()} == {old.version_id, new.version_id}
    with pytest.raises(NotFound) as refused:
        await mesh.wake("f", "other-v1")
    assert refused.value.reason == "VERSION_NOT_FOUND"


async def test_what_cannot_be_woken_says_why(start: Start) -> None:
    mesh = await start(period_s=600)
    with pytest.raises(NotFound, match="no function 'ghost'") as unknown:
        await mesh.wake("ghost")
    assert unknown.value.reason == "FUNCTION_NOT_FOUND"
    mesh.control.deploy("f")
    mesh.control.refusal = FailedPrecondition("MODEL_TOO_LARGE", "it fits nowhere")
    with pytest.raises(FailedPrecondition, match="it fits nowhere"):
        await mesh.wake("f")
    mesh.control.refusal = Unavailable("NO_NODE", "no node is there", retry_after_s=1.0)
    with pytest.raises(Unavailable) as nowhere:
        await mesh.wake("f")
    assert (nowhere.value.reason, nowhere.value.retry_after_s) == ("NO_NODE", 1.0)
    mesh.control.refusal = None
    assert await mesh.wake("f") is True


async def test_a_node_that_does_not_take_the_instance_is_followed_by_another(start: Start) -> None:
    async def two_nodes(mesh: ScalerMesh) -> None:
        mesh.control.add_node("a-dead", "127.0.0.1:1")

    mesh = await start(two_nodes, period_s=600)
    mesh.control.deploy("f")
    assert await mesh.wake("f") is True
    await mesh.control.until(lambda: mesh.control.states("f") == {"FAILED": 1, "READY": 1})
    (failed,) = [x for x in mesh.control.instances.values() if x.state == FAILED]
    assert failed.node_id == "a-dead"
    assert "coordinator of node a-dead at 127.0.0.1:1 did not take it" in failed.reason


async def test_without_any_coordinator_the_wake_up_fails_for_now(start: Start) -> None:
    mesh = await start(period_s=600)
    mesh.control.deploy("f")
    await mesh.node.stop()
    with pytest.raises(Unavailable, match="could be started") as refused:
        await mesh.wake("f")
    assert refused.value.reason == "START_FAILED"
    assert mesh.control.states("f") == {"FAILED": 2}


async def test_an_instance_that_is_stopping_does_not_serve_the_woken(start: Start) -> None:
    mesh = await start(period_s=600)
    version = mesh.control.deploy("f")
    await mesh.control.put(version.version_id, STOPPING)
    assert await mesh.wake("f") is True
    mesh.control.deploy("g")
    await mesh.control.put("g-v1", STOPPING)
    mesh.control.refusal = ResourceExhausted("INSTANCE_LIMIT", "one is the limit")
    with pytest.raises(Unavailable) as refused:
        await mesh.wake("g")
    assert refused.value.reason == "INSTANCE_STOPPING"
    assert refused.value.retry_after_s is not None


# ---- rounds ----


async def test_it_serves_once_cluster_manager_is_there(redis_url: str) -> None:
    control = ClusterDouble()
    address = await control.start()
    await control.stop()
    async with running(Scaler(ScalerConfig(cluster_manager=address, redis=redis_url, period_s=0.05))) as service:
        with pytest.raises(TimeoutError):
            await service.ready(timeout_s=0.3)
        await control.start()
        await service.ready()
    await control.stop()
    async with running(Scaler(ScalerConfig(cluster_manager=address, redis=redis_url))) as service:
        async with asyncio.timeout(10):
            await service.stop()
        assert not service.is_ready


async def test_the_least_number_is_kept(start: Start) -> None:
    mesh = await start()
    mesh.control.deploy("f", least=2, most=3)
    await mesh.control.until(lambda: mesh.control.states("f") == {"READY": 2})
    victim = next(iter(mesh.control.instances))
    await mesh.control.move(victim, FAILED, "killed")
    await mesh.control.until(lambda: mesh.control.states("f") == {"READY": 2, "FAILED": 1})
    await mesh.rounds(5)
    assert mesh.control.calls["CreateInstance"] == 3


async def test_load_brings_more_instances_up_to_the_limit(start: Start) -> None:
    mesh = await start()
    mesh.control.deploy("f", most=3)
    mesh.control.deploy("g", most=3)
    # Ten a second of 150 ms each keep one instance busier than 80%, and are 75% of what two serve.
    await mesh.arrivals("f", 10, device_ms=150)
    await mesh.arrivals("g", 10, device_ms=1000)
    await mesh.control.until(lambda: mesh.control.states("f") == {"READY": 2})
    await mesh.control.until(lambda: mesh.control.states("g") == {"READY": 3})
    await mesh.rounds(3)
    assert (mesh.control.most["f-v1"], mesh.control.most["g-v1"]) == (2, 3)
    decision = await mesh.decision("f")
    assert decision.instance_rate == pytest.approx(1000 / 150)
    assert (decision.instances, decision.desired) == (2, 2)
    assert "limits 0 to 3" in decision.reason


async def test_arrivals_that_tapes_answer_start_nothing_until_the_function_is_woken(start: Start) -> None:
    async def taped(mesh: ScalerMesh) -> None:
        mesh.control.deploy("f")
        mesh.control.nodes["n0"].report.residency.add(version_id="f-v1", node_id="n0", state="HOST", tapes=2)
        await mesh.arrivals("f", 10, device_ms=10)

    mesh = await start(taped)
    await mesh.rounds(5)
    assert mesh.control.calls["CreateInstance"] == 0
    assert "asleep: 2 tapes answer without a process" in (await mesh.decision("f")).reason
    assert await mesh.wake("f")
    await mesh.control.until(lambda: mesh.control.states("f") == {"READY": 1})


async def test_a_busy_function_s_weights_are_brought_to_one_more_node_once(start: Start) -> None:
    beside = CoordinatorDouble(ClusterDouble())

    async def two_nodes(mesh: ScalerMesh) -> None:
        mesh.control.add_node("n1", await beside.start())
        for node in mesh.control.nodes.values():
            node.report.devices.add(name="gpu0")
            node.report.host_capacity_bytes = 1 << 30

    mesh = await start(two_nodes)
    mesh.control.deploy("quiet").weights_bytes = 1 << 20
    mesh.control.deploy("busy").weights_bytes = 1 << 20
    for name in ("quiet", "busy"):
        await mesh.control.put(f"{name}-v1", READY)
    await mesh.arrivals("quiet", 2, device_ms=100)
    await mesh.arrivals("busy", 10, device_ms=80)
    try:
        async with asyncio.timeout(10):
            while not beside.staged:
                await mesh.rounds(1)
        await mesh.rounds(3)
        assert beside.staged == {"busy-v1": 1}
        assert not mesh.node.staged
    finally:
        await beside.stop()


async def test_an_idle_function_goes_to_zero_in_the_right_order(start: Start) -> None:
    mesh = await start()
    mesh.control.deploy("f", idle_s=0.3)
    assert await mesh.wake("f")
    (instance_id,) = mesh.control.instances
    mesh.node.stops.clear()
    await mesh.control.until(lambda: stopped(mesh) == [instance_id])
    # It was out of the routing table before its node was told.
    assert mesh.control.states("f") == {"STOPPING": 1}
    assert mesh.node.stopped[0].grace_ms == 5000
    assert "idle for" in mesh.node.stopped[0].reason
    mesh.node.stops.set()
    await mesh.control.until(lambda: mesh.control.states("f") == {"ENDED": 1})
    await mesh.rounds(5)
    assert mesh.control.calls["CreateInstance"] == 1


async def test_a_wake_up_while_it_goes_to_zero_starts_a_new_instance(start: Start) -> None:
    mesh = await start()
    mesh.control.deploy("f", idle_s=0.2)
    assert await mesh.wake("f")
    mesh.node.stops.clear()
    await mesh.control.until(lambda: len(mesh.node.stopped) == 1)
    assert await mesh.wake("f") is True
    await mesh.control.until(lambda: mesh.control.states("f") == {"STOPPING": 1, "READY": 1})
    mesh.node.stops.set()
    await mesh.control.until(lambda: mesh.control.states("f")["ENDED"] >= 1)


async def test_waking_and_going_to_zero_never_leave_a_waiter_behind(start: Start) -> None:
    """Wake-ups all the time while every instance is idle at once: each finds one or starts one."""
    mesh = await start(period_s=0.05)
    version = mesh.control.deploy("f", idle_s=0.01)
    started = 0
    while started < 5:
        if await mesh.wake("f"):
            started += 1
        else:
            # A wake-up counts as use, so without a pause the instance would never be idle.
            await mesh.rounds(1)
    assert mesh.control.most["f-v1"] == 1
    assert started == mesh.control.calls["CreateInstance"]
    version.spec.scaling.idle_timeout.FromSeconds(300)
    await mesh.wake("f")
    await mesh.rounds(3)
    await mesh.control.until(lambda: mesh.control.states("f")["READY"] == 1)


async def test_a_function_in_use_stays(start: Start) -> None:
    async def busy(mesh: ScalerMesh) -> None:
        mesh.control.deploy("f", idle_s=0.05)
        mesh.control.nodes["n0"].report.devices.add(name="cpu0", executing="f")

    mesh = await start(busy)
    await mesh.wake("f")
    await mesh.rounds(6)
    assert stopped(mesh) == []
    mesh.control.nodes["n0"].report.devices[0].executing = ""
    await mesh.control.until(lambda: len(stopped(mesh)) == 1)


async def test_a_function_that_cannot_start_is_tried_ever_more_rarely(start: Start) -> None:
    mesh = await start(first_backoff_s=0.2)
    mesh.node.fails = True
    mesh.control.deploy("f", least=1)
    await mesh.control.until(lambda: mesh.control.states("f")["FAILED"] == 3)
    # 0, 0.2 and 0.6 s after the first start; a fourth one would come at 1.4 s.
    await mesh.rounds(3)
    assert "3 failures in a row" in (await mesh.decision("f")).reason
    assert mesh.control.calls["CreateInstance"] == 3
    # A request does not wait for that.
    mesh.node.fails = False
    assert await mesh.wake("f") is True
    await mesh.control.until(lambda: mesh.control.states("f")["READY"] == 1)


async def test_what_a_dead_scaler_left_half_done_is_finished(start: Start) -> None:
    async def leftovers(mesh: ScalerMesh) -> None:
        mesh.control.deploy("f", idle_s=60)
        await mesh.control.put("f-v1", PENDING, age_s=5)
        mesh.control.deploy("g")
        await mesh.control.put("g-v1", STOPPING, age_s=60)
        mesh.control.deploy("h")
        await mesh.control.put("h-v1", PENDING, age_s=5)
        mesh.control.deploy("h")

    mesh = await start(leftovers)
    await mesh.control.until(lambda: mesh.control.states("f") == {"READY": 1})
    await mesh.control.until(lambda: mesh.control.states("g") == {"ENDED": 1})
    await mesh.control.until(lambda: mesh.control.states("h") == {"ENDED": 1})
    assert mesh.control.calls["CreateInstance"] == 0


async def test_a_replaced_version_goes_once_the_new_one_serves(start: Start) -> None:
    async def old(mesh: ScalerMesh) -> None:
        mesh.control.deploy("f")
        await mesh.control.put("f-v1", READY, age_s=100)
        mesh.control.deploy("f")

    mesh = await start(old, retire_s=1)
    await mesh.rounds(3)
    assert stopped(mesh) == []
    await mesh.wake("f")
    await mesh.control.until(lambda: mesh.control.states("f") == {"READY": 1, "ENDED": 1})
    assert {x.version_id for x in mesh.control.instances.values() if x.state == READY} == {"f-v2"}


async def test_without_redis_nothing_is_stopped_and_the_least_is_kept(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rouse_scaler")

    async def idle(mesh: ScalerMesh) -> None:
        mesh.control.deploy("f", idle_s=1)
        await mesh.control.put("f-v1", READY, age_s=100)
        mesh.control.deploy("g", least=1)

    mesh = await start(idle, redis="redis://127.0.0.1:1/0")
    await mesh.control.until(lambda: mesh.control.states("g") == {"READY": 1})
    await mesh.rounds(3)
    assert stopped(mesh) == []
    assert "arrivals are not known" in (await mesh.decision("f")).reason
    assert sum("nothing is scaled in" in message for message in caplog.messages) == 1


async def test_it_goes_on_when_cluster_manager_is_back(start: Start) -> None:
    mesh = await start()
    mesh.control.deploy("f", least=1)
    await mesh.control.until(lambda: mesh.control.states("f") == {"READY": 1})
    await mesh.control.stop()
    mesh.control.deploy("g", least=1)
    with pytest.raises(Unavailable):
        await mesh.wake("g")
    await mesh.control.start()
    await mesh.control.until(lambda: mesh.control.states("g") == {"READY": 1})


async def test_what_is_kept_of_a_deleted_function_goes(start: Start, redis_url: str) -> None:
    mesh = await start()
    mesh.control.deploy("f")
    mesh.control.deploy("stays")
    await mesh.arrivals("f", 1)
    await mesh.arrivals("stays", 1)
    await mesh.decision("f")
    del mesh.control.functions["f"]
    windows = Windows.connect(redis_url)
    async with asyncio.timeout(10):
        while "f" in await windows.last_arrivals():
            await mesh.rounds(1)
    assert set(await windows.last_arrivals()) == {"stays"}
    assert "f" not in await windows.activity(10)
    await windows.close()
    answer = await call(mesh.stub.ListDecisions, scaling.ListDecisionsRequest(), timeout_s=5)
    assert [decision.function for decision in answer.decisions] == ["stays"]
