"""node-router over real gRPC and Redis, with doubles of gpu-server, executors and cluster-manager."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rouse_cache import Activity, Windows
from rouse_common.clock import SystemClock
from rouse_common.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    RouseError,
    Unavailable,
)
from rouse_contracts import device, node
from rouse_contracts.links import INFER
from rouse_node_router.adapters import devices as devices_module
from rouse_node_router.app import NodeRouter
from rouse_node_router.config import NodeRouterConfig
from rouse_testkit.clock import ManualClock
from rouse_testkit.doubles_node import DeviceDouble
from rouse_testkit.router_node import Held, RouterNode, router_node
from rouse_testkit.running import running

Start = Callable[..., Awaitable[RouterNode]]


def make_router(**options: Any) -> NodeRouter:
    return NodeRouter(NodeRouterConfig(**options))


@pytest.fixture
async def start(tmp_path: Path, redis_url: str) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> RouterNode:
            return await stack.enter_async_context(router_node(make_router, tmp_path, redis_url, **options))

        yield make


@pytest.fixture(autouse=True)
def wide_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine too the router's own answer comes before the caller's deadline."""
    monkeypatch.setattr("rouse_node_router.requests.MARGIN_S", 0.15)
    monkeypatch.setattr("rouse_node_router.requests.MARGIN_SHARE", 0.5)


async def test_a_request_is_executed_answered_and_accounted_for(start: Start, redis_url: str) -> None:
    mesh = await start()
    executor = await mesh.add_executor()
    seen: list[device.ExecuteRequest] = []

    async def behaviour(request: device.ExecuteRequest) -> device.ExecuteResponse:
        seen.append(request)
        return device.ExecuteResponse(outputs=b"out", device_ms=12.5)

    executor.behaviour, mesh.devices.swapped_in = behaviour, True
    answer = await mesh.infer("r1", inputs=b"tensors")
    assert (answer.outputs, answer.device, answer.swapped_in) == (b"out", "cpu0", True)
    assert (seen[0].inputs, seen[0].request_id, list(seen[0].output_names)) == (b"tensors", "r1", ["y"])
    assert answer.timings.execute_ms == 12.5
    # gpu-server says two milliseconds; no more of it than the request was here.
    assert 0 < answer.timings.swap_ms <= 2.0
    assert 0 <= answer.timings.queue_ms <= answer.timings.total_ms
    await mesh.all_released()
    (release,) = mesh.devices.releases
    assert (release.lease_id, release.device_ms, release.abandoned) == (seen[0].lease_id, 12.5, False)
    record = (await mesh.usage.until(1))["r1"]
    assert (record.function, record.version_id, record.node_id, record.device) == ("f", "v1", "node0", "cpu0")
    assert (record.device_ms, record.status_code, record.swapped_in) == (12.5, 0, True)
    assert record.swap_ms == answer.timings.swap_ms
    await mesh.service.stop()
    windows = Windows.connect(redis_url, ManualClock(SystemClock().now() + 5))
    assert await windows.activity(30) == {"f": Activity(arrivals=0, completions=1, device_ms=12.5, window_s=30)}
    await windows.close()


async def test_the_health_says_when_it_serves(start: Start) -> None:
    mesh = await start()
    stub = health_pb2_grpc.HealthStub(mesh.channels.get(mesh.address))
    for name in ("", "rouse.node.v1.NodeService"):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_leases_of_earlier_lives_are_freed_before_it_serves(tmp_path: Path, redis_url: str) -> None:
    devices = DeviceDouble()
    address = await devices.start()
    await devices.stop()
    config = NodeRouterConfig(node_id="node0", gpu_server=address, gpu_server_link=devices.link, redis=redis_url)
    incarnations = set()
    for life in range(2):
        async with running(NodeRouter(config)) as service:
            if life == 0:
                # It waits for gpu-server instead of giving up.
                with pytest.raises(TimeoutError):
                    await service.ready(timeout_s=0.5)
                assert devices.released_all == []
                await devices.start()
            await service.ready()
            assert len(devices.released_all) == life + 1
            assert devices.released_all[life].owner == "node0"
            incarnations.add(devices.released_all[life].incarnation)
    assert len(incarnations) == 2
    await devices.stop()


async def test_it_stops_while_it_waits_for_gpu_server(redis_url: str) -> None:
    async with running(NodeRouter(NodeRouterConfig(gpu_server="127.0.0.1:1", redis=redis_url))) as service:
        async with asyncio.timeout(10):
            await service.stop()
        assert not service.is_ready


async def test_two_executors_work_at_once_and_no_more_than_allowed_wait_for_one(start: Start) -> None:
    mesh = await start(max_acquires_per_version=2, lease_reuse_ms=0)
    behaviour = Held()
    for _ in range(2):
        (await mesh.add_executor()).behaviour = behaviour
    calls = [asyncio.create_task(mesh.infer(f"r{number}")) for number in range(12)]
    for _ in range(2):
        await behaviour.started.get()
    await mesh.devices.until(lambda: mesh.devices.waiting == 2)
    await mesh.row_with(queued=10, executing=2)
    behaviour.go.set()
    answers = await asyncio.gather(*calls)
    assert [answer.outputs for answer in answers] == [b"late"] * 12
    assert mesh.devices.most_waiting <= 2
    await mesh.row_with(queued=0, executing=0, completed=12, failed=0)
    assert len(mesh.devices.acquired) == 12


async def test_a_lease_serves_the_requests_that_follow_while_nobody_else_waits(start: Start) -> None:
    mesh = await start(lease_reuse_ms=1000)
    executor = await mesh.add_executor()
    answers = await asyncio.gather(*[mesh.infer(f"r{number}", inputs=b"x") for number in range(50)])
    assert [answer.outputs for answer in answers] == [b"x"] * 50
    assert set(executor.executed.values()) == {1}
    await mesh.all_released()
    assert len(mesh.devices.acquired) < 10, "gpu-server was not asked for every request"
    # One that was granted when nobody waited any more came back unused.
    assert sum(release.requests for release in mesh.devices.releases if release.device_ms) == 50
    assert sum(release.device_ms for release in mesh.devices.releases) == 50.0


async def test_a_lease_is_not_kept_from_another_version(start: Start) -> None:
    mesh = await start(lease_reuse_ms=1000)
    behaviour = Held()
    executor = await mesh.add_executor()
    executor.behaviour = behaviour
    mesh.devices.executors["v2"] = [executor]
    calls = [asyncio.create_task(mesh.infer(f"r{number}")) for number in range(8)]
    await behaviour.started.get()
    other = asyncio.create_task(mesh.infer("other", version_id="v2"))
    await mesh.devices.until(lambda: len(mesh.devices._waiting.get("v2", ())) == 1)
    behaviour.go.set()
    await asyncio.gather(*calls, other)
    await mesh.all_released()
    order = list(executor.executed)
    assert order.index("other") < len(order) - 1, "it did not wait for all of the others"


async def test_what_rests_is_given_back(start: Start) -> None:
    mesh = await start()
    await mesh.add_executor()
    await mesh.infer("r0")
    await mesh.all_released()
    (release,) = mesh.devices.releases
    assert (release.requests, release.abandoned) == (1, False)


async def test_a_full_queue_refuses_and_says_when_to_come_back(start: Start) -> None:
    mesh = await start()
    behaviour = Held()
    (await mesh.add_executor()).behaviour = behaviour
    calls = [asyncio.create_task(mesh.infer("r0", capacity=3))]
    await behaviour.started.get()
    calls += [asyncio.create_task(mesh.infer(f"r{number}", capacity=3)) for number in range(1, 4)]
    await mesh.row_with(queued=3)
    with pytest.raises(ResourceExhausted, match="3 requests wait, 3 is the limit") as refused:
        await mesh.infer("r4", capacity=3)
    assert refused.value.reason == "QUEUE_FULL"
    assert refused.value.retry_after_s is not None
    assert refused.value.metadata["function"] == "f"
    behaviour.go.set()
    await asyncio.gather(*calls)
    row = await mesh.row_with(completed=4, refused=1)
    assert (row.statistics.success.count, row.statistics.fail.count) == (4, 1)
    assert "r4" not in await mesh.usage.until(4)


async def test_a_queued_request_expires_unexecuted(start: Start) -> None:
    mesh = await start(max_acquires_per_version=1)
    behaviour = Held()
    executor = await mesh.add_executor()
    executor.behaviour = behaviour
    running_ones = [asyncio.create_task(mesh.infer("r0")), asyncio.create_task(mesh.infer("r1"))]
    await behaviour.started.get()
    await mesh.devices.until(lambda: mesh.devices.waiting == 1)
    with pytest.raises(DeadlineExceeded, match=r"waited in the queue .* not executed"):
        await mesh.infer("late", timeout_s=0.3)
    await mesh.row_with(queued=1, expired=1)
    behaviour.go.set()
    await asyncio.gather(*running_ones)
    assert executor.executed == {"r0": 1, "r1": 1}
    assert (await mesh.usage.until(3))["late"].status_code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


async def test_a_request_expires_while_it_waits_for_a_device(start: Start) -> None:
    mesh = await start()
    behaviour = Held()
    executor = await mesh.add_executor()
    executor.behaviour = behaviour
    first = asyncio.create_task(mesh.infer("r0"))
    await behaviour.started.get()
    with pytest.raises(DeadlineExceeded, match=r"waited in the queue .* for a device; it was not executed"):
        await mesh.infer("late", timeout_s=0.3)
    behaviour.go.set()
    await first
    await mesh.all_released()
    assert (await mesh.infer("r1")).outputs == b"late"
    assert executor.executed == {"r0": 1, "r1": 1}


async def test_an_execution_past_its_deadline_is_cancelled_and_the_lease_abandoned(start: Start) -> None:
    mesh = await start()
    executor = await mesh.add_executor()
    executor.behaviour = Held()
    with pytest.raises(DeadlineExceeded, match="did not answer within the deadline on device 'cpu0'"):
        await mesh.infer("slow", timeout_s=0.5)
    await mesh.all_released()
    assert executor.cancelled == {"slow": 1}
    assert [release.abandoned for release in mesh.devices.releases] == [True]
    assert (await mesh.usage.until(1))["slow"].status_code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


@pytest.mark.parametrize("where", ["queue", "device", "execution"])
async def test_cancelling_takes_a_request_out_wherever_it_is(start: Start, where: str) -> None:
    mesh = await start(max_acquires_per_version=1)
    behaviour = Held()
    executor = await mesh.add_executor()
    executor.behaviour = behaviour
    calls = {"execution": asyncio.create_task(mesh.infer("execution"))}
    await behaviour.started.get()
    calls["device"] = asyncio.create_task(mesh.infer("device"))
    await mesh.devices.until(lambda: mesh.devices.waiting == 1)
    calls["queue"] = asyncio.create_task(mesh.infer("queue"))
    await mesh.row_with(queued=2)
    goes = calls.pop(where)
    goes.cancel()
    with pytest.raises(asyncio.CancelledError):
        await goes
    # Which request a device is asked for is decided when it is there: another one takes its place.
    await mesh.row_with(failed=1)
    behaviour.go.set()
    for name, others in calls.items():
        assert (await others).outputs == b"late", name
    await mesh.all_released()
    assert executor.executed[where] == (1 if where == "execution" else 0)
    await mesh.row_with(queued=0, executing=0, completed=2, failed=1)
    abandoned = [release for release in mesh.devices.releases if release.abandoned]
    assert len(abandoned) == (1 if where == "execution" else 0)


async def test_nobody_asks_for_a_device_that_nobody_needs(start: Start) -> None:
    mesh = await start()
    behaviour = Held()
    (await mesh.add_executor()).behaviour = behaviour
    calls = [asyncio.create_task(mesh.infer("r0"))]
    await behaviour.started.get()
    calls.append(asyncio.create_task(mesh.infer("r1")))
    await mesh.devices.until(lambda: mesh.devices.waiting == 1)
    calls.pop().cancel()
    await mesh.devices.until(lambda: any(release.acquire_id for release in mesh.devices.releases))
    behaviour.go.set()
    await calls[0]
    await mesh.all_released()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Internal("FUNCTION_RAISED", "ValueError: no"), Internal),
        (InvalidArgument("BAD_TENSOR", "tensor 'x' has no data"), InvalidArgument),
    ],
)
async def test_the_functions_own_error_reaches_the_caller(
    start: Start, error: RouseError, kind: type[RouseError]
) -> None:
    mesh = await start()
    executor = await mesh.add_executor()

    async def behaviour(request: device.ExecuteRequest) -> device.ExecuteResponse:
        raise error

    executor.behaviour = behaviour
    with pytest.raises(kind, match=str(error)) as raised:
        await mesh.infer("r")
    assert raised.value.reason == error.reason
    await mesh.all_released()
    assert executor.executed == {"r": 1}
    assert [release.abandoned for release in mesh.devices.releases] == [False]
    record = (await mesh.usage.until(1))["r"]
    assert record.status_code == error.code.value[0]


async def test_no_executor_sends_the_gateway_elsewhere(start: Start) -> None:
    mesh = await start()
    with pytest.raises(Unavailable, match="nothing was executed") as refused:
        await mesh.infer("r", version_id="unknown")
    assert refused.value.reason == "NO_INSTANCE"
    assert refused.value.metadata == {"function": "f", "version": "unknown", "node": "node0"}


async def test_what_gpu_server_refuses_reaches_the_caller(start: Start) -> None:
    mesh = await start()
    await mesh.add_executor()
    mesh.devices.refusals.append(FailedPrecondition("MODEL_TOO_LARGE", "no device holds 9 GiB"))
    with pytest.raises(FailedPrecondition, match="no device holds 9 GiB"):
        await mesh.infer("r")
    mesh.devices.refusals.append(ResourceExhausted("DEVICE_WAIT_FULL", "too many wait", retry_after_s=0.7))
    with pytest.raises(ResourceExhausted) as refused:
        await mesh.infer("r")
    assert (refused.value.reason, refused.value.retry_after_s) == ("DEVICE_WAIT_FULL", 0.7)


async def test_a_request_needs_its_names_and_the_link(start: Start) -> None:
    mesh = await start()
    with pytest.raises(InvalidArgument, match="that is no"):
        await mesh.links.call(mesh.link, INFER.encode(), [b"\xff"], 5)
    over_grpc = mesh.stub.Infer(node.InferRequest(function="f", version_id="v1", request_id="r"), timeout=5)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await over_grpc.read()
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(InvalidArgument, match="version_id"):
        await mesh.infer("r", version_id="")


async def accepts(path: str) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


async def test_a_stop_finishes_what_runs_and_sends_the_last_usage(start: Start) -> None:
    mesh = await start(drain_s=10)
    behaviour = Held()
    (await mesh.add_executor()).behaviour = behaviour
    running_one = asyncio.create_task(mesh.infer("r0"))
    await behaviour.started.get()
    stopped = mesh.service.stop()
    async with asyncio.timeout(10):
        while await accepts(mesh.link.removeprefix("unix:")):
            pass
    behaviour.go.set()
    assert (await running_one).outputs == b"late"
    await stopped
    assert "r0" in await mesh.usage.until(1)
    assert not mesh.devices.held


async def test_usage_waits_for_cluster_manager_and_is_bounded(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    mesh = await start(usage_buffer=1000)
    await mesh.add_executor()
    await mesh.usage.stop()
    for number in range(1010):
        await mesh.infer(f"r{number}")
    assert sum("usage records are lost" in message for message in caplog.messages) == 1
    assert sum("usage records wait for cluster-manager" in message for message in caplog.messages) <= 1
    await mesh.usage.start()
    records = await mesh.usage.until(1000)
    assert sorted(records, key=lambda name: int(name[1:])) == [f"r{number}" for number in range(10, 1010)]
    assert len(mesh.usage.records) == 1000


async def test_releases_outlive_an_outage_of_gpu_server(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_module, "RELEASE_PAUSE_S", 0.05)
    mesh = await start()
    behaviour = Held()
    (await mesh.add_executor()).behaviour = behaviour
    running_one = asyncio.create_task(mesh.infer("r0"))
    await behaviour.started.get()
    await mesh.devices.stop()
    behaviour.go.set()
    # The answer does not wait for gpu-server.
    assert (await running_one).outputs == b"late"
    await mesh.devices.start()
    await mesh.all_released()
    assert (await mesh.infer("r1")).outputs == b"late"
