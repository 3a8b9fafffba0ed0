"""Requests that are executed together: each gets its own rows, and what happens to one happens to it alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rouse_common.errors import DeadlineExceeded, Internal, InvalidArgument, RouseError, Unavailable
from rouse_contracts import device, functions, node
from rouse_contracts.arrays import from_batch, to_batch
from rouse_node_router.app import NodeRouter
from rouse_node_router.config import NodeRouterConfig
from rouse_testkit.doubles_node import ExecutorDouble
from rouse_testkit.router_node import RouterNode, router_node

BATCHING = functions.Batching(max_batch_size=8)


def make_router(**options: Any) -> NodeRouter:
    return NodeRouter(NodeRouterConfig(**options))


@pytest.fixture
async def mesh(tmp_path: Path, redis_url: str) -> AsyncIterator[RouterNode]:
    async with router_node(make_router, tmp_path, redis_url, lease_reuse_ms=0) as made:
        yield made


@pytest.fixture(autouse=True)
def wide_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine too the router's own answer comes before the caller's deadline."""
    monkeypatch.setattr("rouse_node_router.requests.MARGIN_S", 0.15)
    monkeypatch.setattr("rouse_node_router.requests.MARGIN_SHARE", 0.5)


class Doubling:
    """A batchable function: twice its input. It refuses negative numbers, and starts when it is told to."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.started: asyncio.Queue[int] = asyncio.Queue()
        self.go = asyncio.Event()

    async def __call__(self, request: device.ExecuteRequest) -> device.ExecuteResponse:
        x = from_batch(functions.TensorBatch.FromString(request.inputs))["x"]
        assert request.rows == len(x)
        self.rows.append(len(x))
        self.started.put_nowait(len(x))
        await self.go.wait()
        if (x < 0).any():
            raise Internal("FUNCTION_RAISED", "ValueError: negative")
        outputs = to_batch({"y": x * 2}).SerializeToString()
        return device.ExecuteResponse(outputs=outputs, device_ms=8.0, input_ms=1.0, output_ms=2.0)


async def infer(
    mesh: RouterNode, number: int, rows: int = 1, timeout_s: float = 10.0, batching: functions.Batching = BATCHING
) -> node.InferResponse:
    x = np.full((rows, 2), number, np.float32)
    return await mesh.infer(
        f"r{number}", inputs=to_batch({"x": x}).SerializeToString(), rows=rows, batching=batching, timeout_s=timeout_s
    )


def result(answer: node.InferResponse) -> list[list[float]]:
    values: list[list[float]] = from_batch(functions.TensorBatch.FromString(answer.outputs))["y"].tolist()
    return values


class Line:
    """A router whose only instance is busy with request 0, and others queued behind it."""

    def __init__(self, mesh: RouterNode, executor: ExecutorDouble, function: Doubling) -> None:
        self.mesh, self.executor, self.function = mesh, executor, function
        self.first = asyncio.create_task(infer(mesh, 0))
        self.calls: dict[int, asyncio.Task[node.InferResponse]] = {}

    async def queue(self, numbers: list[int], rows: int = 1, timeout_s: float = 10.0) -> None:
        for number in numbers:
            self.calls[number] = asyncio.create_task(infer(self.mesh, number, rows, timeout_s))
            await self.mesh.row_with(queued=len(self.calls))


@pytest.fixture
async def line(mesh: RouterNode) -> Line:
    executor = await mesh.add_executor()
    executor.behaviour = function = Doubling()
    line = Line(mesh, executor, function)
    await function.started.get()
    return line


async def test_what_queued_meanwhile_is_executed_together_and_split(line: Line) -> None:
    await line.queue([1, 2, 3])
    await line.queue([4], rows=3)
    await line.queue([5, 6, 7])
    line.function.go.set()
    alone = await line.first
    assert (result(alone), alone.batch_requests) == ([[0, 0]], 1)
    answers = {number: await call for number, call in line.calls.items()}
    assert line.function.rows == [1, 8, 1]
    assert {number: result(answer) for number, answer in answers.items()} == {
        number: [[2 * number] * 2] * (3 if number == 4 else 1) for number in range(1, 8)
    }
    assert [answer.batch_requests for answer in answers.values()] == [6] * 6 + [1]
    await line.mesh.all_released()
    assert sorted(release.device_ms for release in line.mesh.devices.releases) == [8.0] * 3
    # Everybody pays for its rows only, and all pay for what the device worked.
    records = await line.mesh.usage.until(8)
    assert {record: records[record].device_ms for record in ("r0", "r1", "r4")} == {"r0": 8.0, "r1": 1.0, "r4": 3.0}
    assert sum(record.device_ms for record in records.values()) == pytest.approx(24.0)


async def test_who_waits_for_company_does_not_go_alone_when_another_ends(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The lease may be used again however long the test takes.
    monkeypatch.setattr("rouse_node_router.leases.REST_S", 60.0)
    waits = functions.Batching(max_batch_size=8, max_delay_us=60_000_000)
    async with router_node(make_router, tmp_path, redis_url, lease_reuse_ms=60_000) as mesh:
        executor = await mesh.add_executor()
        executor.behaviour = function = Doubling()
        function.go.set()
        # From now on it is known how long an execution takes, and so how long one may be waited for.
        await infer(mesh, 0, rows=8, batching=waits)
        function.go.clear()
        full = asyncio.create_task(infer(mesh, 1, rows=8, timeout_s=60.0, batching=waits))
        await mesh.row_with(executing=1)
        first = asyncio.create_task(infer(mesh, 2, timeout_s=60.0, batching=waits))
        await mesh.row_with(executing=1, queued=1)
        function.go.set()
        await full
        await mesh.row_with(executing=0, queued=1)
        rest = await infer(mesh, 3, rows=7, timeout_s=60.0, batching=waits)
        assert (function.rows, rest.batch_requests, result(await first)) == ([8, 8, 8], 2, [[4, 4]])


async def test_the_statistics_are_true(line: Line) -> None:
    await line.queue([1, 2, -3])
    line.function.go.set()
    await asyncio.gather(line.first, line.calls[1], line.calls[2])
    with pytest.raises(Internal):
        await line.calls[-3]
    counted = (await line.mesh.row_with(completed=3, failed=1)).statistics
    # The batch failed for its bad member, and its members were executed alone.
    assert line.function.rows == [1, 3, 1, 1, 1]
    assert (counted.inference_count, counted.execution_count) == (3, 3)
    assert (counted.success.count, counted.fail.count, counted.cancel.count, counted.queue.count) == (3, 1, 0, 3)
    assert (counted.compute_input.count, counted.compute_input.nanos) == (3, 3_000_000)
    assert (counted.compute_infer.count, counted.compute_infer.nanos) == (3, 24_000_000)
    assert (counted.compute_output.count, counted.compute_output.nanos) == (3, 6_000_000)
    assert [(tally.batch_size, tally.compute_infer.count) for tally in counted.batches] == [(1, 3)]
    await asyncio.gather(*[infer(line.mesh, number, rows=4) for number in (10, 11)])
    counted = (await line.mesh.row_with(completed=5)).statistics
    assert counted.inference_count == 11
    assert counted.success.nanos >= counted.queue.nanos
    sizes = {tally.batch_size: tally.compute_infer for tally in counted.batches}
    assert sum(size * tally.count for size, tally in sizes.items()) == 11
    assert counted.last_inference_ms > 0


async def test_one_bad_member_fails_alone(line: Line) -> None:
    await line.queue([1, -2, 3])
    line.function.go.set()
    assert [result(await line.calls[number]) for number in (1, 3)] == [[[2, 2]], [[6, 6]]]
    with pytest.raises(Internal, match="negative") as refused:
        await line.calls[-2]
    assert refused.value.reason == "FUNCTION_RAISED"
    await line.mesh.all_released()
    # All under one lease, which goes back clean.
    assert len(line.mesh.devices.releases) == 2
    assert not any(release.abandoned for release in line.mesh.devices.releases)


async def test_outputs_that_are_not_the_batch_are_asked_for_one_by_one(line: Line) -> None:
    async def summing(request: device.ExecuteRequest) -> device.ExecuteResponse:
        x = from_batch(functions.TensorBatch.FromString(request.inputs))["x"]
        return device.ExecuteResponse(outputs=to_batch({"y": x.sum(0, keepdims=True)}).SerializeToString())

    await line.queue([1, 2])
    line.executor.behaviour = summing
    line.function.go.set()
    assert [result(await line.calls[number]) for number in (1, 2)] == [[[1, 1]], [[2, 2]]]


async def test_who_gave_up_is_not_executed_and_harms_nobody(line: Line) -> None:
    await line.queue([1, 2, 3])
    line.calls[2].cancel()
    await line.mesh.row_with(queued=2)
    line.function.go.set()
    assert [result(await line.calls[number]) for number in (1, 3)] == [[[2, 2]], [[6, 6]]]
    assert line.function.rows == [1, 2]


async def test_who_gives_up_during_the_execution_harms_nobody(line: Line) -> None:
    await line.queue([1, 2])
    await line.queue([3], timeout_s=2.0)
    line.function.go.set()
    await line.first
    line.function.go = asyncio.Event()
    while await line.function.started.get() != 3:
        pass
    line.calls[2].cancel()
    with pytest.raises(DeadlineExceeded, match="did not answer within the deadline"):
        await line.calls[3]
    await line.mesh.row_with(executing=1)
    line.function.go.set()
    assert result(await line.calls[1]) == [[2, 2]]
    await line.mesh.all_released()
    assert not any(release.abandoned for release in line.mesh.devices.releases)


async def test_a_batch_that_nobody_waits_for_is_cancelled(line: Line) -> None:
    await line.queue([1, 2])
    line.function.go.set()
    await line.first
    line.function.go = asyncio.Event()
    while await line.function.started.get() != 2:
        pass
    for call in line.calls.values():
        call.cancel()
    await line.mesh.all_released()
    assert sorted(release.abandoned for release in line.mesh.devices.releases) == [False, True]
    assert line.executor.cancelled.total() == 1


async def test_a_lost_executor_ends_all_members(line: Line) -> None:
    await line.queue([1, 2])
    line.function.go.set()
    await line.first
    line.function.go = asyncio.Event()
    while await line.function.started.get() != 2:
        pass
    await line.executor.kill()
    for call in line.calls.values():
        with pytest.raises(Unavailable) as lost:
            await call
        assert lost.value.reason == "EXECUTOR_LOST"
    await line.mesh.row_with(queued=0, executing=0, failed=2)


async def test_a_batch_that_was_not_taken_goes_again(line: Line) -> None:
    await line.queue([1, 2])
    line.mesh.devices.stale = 1
    line.function.go.set()
    assert [result(await line.calls[number]) for number in (1, 2)] == [[[2, 2]], [[4, 4]]]
    await line.mesh.all_released()
    assert len(line.mesh.devices.releases) >= 3


async def test_two_instances_share_the_queue(mesh: RouterNode) -> None:
    function = Doubling()
    for _ in range(2):
        (await mesh.add_executor()).behaviour = function
    calls = []
    for number in range(2):
        calls.append(asyncio.create_task(infer(mesh, number)))
        await function.started.get()
    calls += [asyncio.create_task(infer(mesh, number)) for number in range(2, 18)]
    await mesh.row_with(queued=16, executing=2)
    function.go.set()
    assert [result(await call) for call in calls] == [[[2 * number] * 2] for number in range(18)]
    assert sorted(function.rows) == [1, 1, 8, 8]


@pytest.mark.parametrize("error", [InvalidArgument("BAD_TENSOR", "no"), Internal("BAD_RESULT", "no")])
async def test_a_refused_batch_refuses_each_member_for_itself(line: Line, error: RouseError) -> None:
    async def refuse(request: device.ExecuteRequest) -> device.ExecuteResponse:
        raise error

    await line.queue([1, 2])
    line.executor.behaviour = refuse
    line.function.go.set()
    for call in line.calls.values():
        with pytest.raises(type(error)) as refused:
            await call
        assert refused.value.reason == error.reason
    assert line.executor.executed == {"r0": 1, "r1": 2, "r2": 1}


async def test_more_rows_than_a_batch_has_are_refused(mesh: RouterNode) -> None:
    with pytest.raises(InvalidArgument, match="has 9 rows; function 'f' takes 8 at most"):
        await infer(mesh, 1, rows=9)
