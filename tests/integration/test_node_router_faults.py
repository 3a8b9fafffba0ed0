"""What node-router does when executors and gpu-server fail under it: every request ends exactly once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rouse_common.errors import Internal, RouseError, Unavailable
from rouse_contracts import device, functions, node
from rouse_contracts.arrays import to_batch
from rouse_node_router.adapters.devices import Devices, Lease
from rouse_node_router.app import NodeRouter
from rouse_node_router.config import NodeRouterConfig
from rouse_testkit.doubles_node import ExecutorDouble
from rouse_testkit.router_node import Held, RouterNode, router_node


def make_router(**options: Any) -> NodeRouter:
    return NodeRouter(NodeRouterConfig(**options))


@pytest.fixture
async def mesh(tmp_path: Path, redis_url: str) -> AsyncIterator[RouterNode]:
    async with router_node(make_router, tmp_path, redis_url) as made:
        yield made


async def test_a_stale_lease_is_replaced(mesh: RouterNode) -> None:
    executor = await mesh.add_executor()
    stale = mesh.devices.stale = 2
    answer = await mesh.infer("r", inputs=b"x")
    assert answer.outputs == b"x"
    await mesh.all_released()
    assert len(mesh.devices.releases) == stale + 1
    assert not any(release.abandoned for release in mesh.devices.releases)
    assert executor.executed == {"r": 1}
    await mesh.row_with(completed=1, failed=0)


async def test_three_stale_leases_are_enough(mesh: RouterNode) -> None:
    executor = await mesh.add_executor()
    mesh.devices.stale = 3
    with pytest.raises(Unavailable, match=r"after 3 tries") as refused:
        await mesh.infer("r")
    assert refused.value.reason == "NO_INSTANCE"
    await mesh.all_released()
    assert not executor.executed
    await mesh.row_with(completed=0, failed=1)


async def test_a_busy_executor_is_left_to_gpu_server(mesh: RouterNode) -> None:
    executor = await mesh.add_executor()
    answers = [Internal("EXECUTOR_BUSY", "something else runs here")]

    async def behaviour(request: device.ExecuteRequest) -> device.ExecuteResponse:
        if answers:
            raise answers.pop()
        return device.ExecuteResponse(outputs=b"ok")

    executor.behaviour = behaviour
    assert (await mesh.infer("r")).outputs == b"ok"
    await mesh.all_released()
    assert [release.abandoned for release in mesh.devices.releases] == [True, False]


async def test_an_executor_that_cannot_be_reached_is_not_the_end(mesh: RouterNode) -> None:
    gone, there = await mesh.add_executor(), await mesh.add_executor()
    await gone.kill()
    # gpu-server learns that it is gone when it makes sure of it, after the first try.
    mesh.devices.on_abandoned = lambda executor: mesh.devices.executors["v1"].remove(executor)
    answer = await mesh.infer("r", inputs=b"x")
    assert answer.outputs == b"x"
    await mesh.all_released()
    assert [release.abandoned for release in mesh.devices.releases] == [True, False]
    assert (gone.executed, there.executed) == (Counter(), Counter(r=1))


async def test_an_executor_that_dies_before_it_is_granted_is_not_the_end(mesh: RouterNode) -> None:
    executor = await mesh.add_executor()
    mesh.devices.refusals += [Unavailable("EXECUTOR_LOST", "it ended while it was being attached")] * 2
    assert (await mesh.infer("r", inputs=b"x")).outputs == b"x"
    assert executor.executed == {"r": 1}
    await mesh.all_released()
    mesh.devices.refusals += [Unavailable("EXECUTOR_LOST", "it ended while it was being attached")] * 3
    with pytest.raises(Unavailable, match="nothing was executed") as refused:
        await mesh.infer("r2")
    assert refused.value.reason == "NO_INSTANCE"


async def test_a_node_that_stops_sends_the_gateway_elsewhere_at_once(mesh: RouterNode) -> None:
    await mesh.add_executor()
    mesh.devices.refusals.append(Unavailable("NODE_STOPPING", "gpu-server is stopping"))
    with pytest.raises(Unavailable, match="gpu-server is stopping") as refused:
        await mesh.infer("r")
    assert refused.value.reason == "NO_INSTANCE"


async def test_an_executor_that_dies_with_a_request_is_not_tried_again(mesh: RouterNode) -> None:
    dies, other = await mesh.add_executor(), await mesh.add_executor()
    dies.behaviour = behaviour = Held()
    call = asyncio.create_task(mesh.infer("r"))
    await behaviour.started.get()
    await dies.kill()
    with pytest.raises(Unavailable, match="which may have run") as lost:
        await call
    assert lost.value.reason == "EXECUTOR_LOST"
    assert lost.value.metadata == {"function": "f", "version": "v1", "device": "cpu0"}
    await mesh.all_released()
    assert [release.abandoned for release in mesh.devices.releases] == [True]
    assert (dies.executed, other.executed) == (Counter(r=1), Counter())
    assert (await mesh.usage.until(1))["r"].status_code == Unavailable.code.value[0]


async def test_what_ran_in_an_executor_that_died_is_not_tried_again(mesh: RouterNode) -> None:
    """An instance that is well says so of the executor that it computes in."""
    executor, other = await mesh.add_executor(), await mesh.add_executor()

    async def behaviour(request: device.ExecuteRequest) -> device.ExecuteResponse:
        raise Unavailable("EXECUTOR_LOST", "its process has ended")

    executor.behaviour = other.behaviour = behaviour
    with pytest.raises(Unavailable, match="which may have run") as lost:
        await mesh.infer("r")
    assert lost.value.reason == "EXECUTOR_LOST"
    await mesh.all_released()
    assert executor.executed + other.executed == Counter(r=1)


async def test_a_new_executor_at_the_same_address_is_found(mesh: RouterNode) -> None:
    executor = await mesh.add_executor()
    await mesh.infer("r0")
    await executor.kill()
    await executor.start()
    # The old connection broke meanwhile; it must cost neither the request nor its deadline.
    assert (await mesh.infer("r1", inputs=b"x")).outputs == b"x"
    assert executor.executed == {"r0": 1, "r1": 1}


async def test_waiting_requests_survive_a_restart_of_gpu_server(mesh: RouterNode) -> None:
    executor = await mesh.add_executor()
    executor.behaviour = behaviour = Held()
    calls = [asyncio.create_task(mesh.infer(f"r{number}")) for number in range(6)]
    await behaviour.started.get()
    await mesh.devices.until(lambda: mesh.devices.waiting == 2)
    await mesh.devices.stop()
    behaviour.go.set()
    await mesh.devices.start()
    assert [answer.outputs for answer in await asyncio.gather(*calls)] == [b"late"] * 6
    assert executor.executed == {f"r{number}": 1 for number in range(6)}
    await mesh.all_released()


async def test_without_gpu_server_a_request_may_go_elsewhere(mesh: RouterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rouse_node_router.adapters.devices.REACH_S", 0.2)
    await mesh.devices.stop()
    with pytest.raises(Unavailable, match="does not answer") as refused:
        await mesh.infer("r")
    assert refused.value.reason == "NO_INSTANCE"
    assert not mesh.usage.records


async def test_a_fault_of_our_own_fails_one_request_and_no_more(
    mesh: RouterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mesh.add_executor()
    acquire = Devices.acquire

    async def fails(self: Devices, version_id: str, *arguments: Any) -> Lease:
        monkeypatch.setattr(Devices, "acquire", acquire)
        raise ZeroDivisionError

    monkeypatch.setattr(Devices, "acquire", fails)
    with pytest.raises(Internal, match="ZeroDivisionError"):
        await mesh.infer("r0")
    assert (await mesh.infer("r1", inputs=b"x")).outputs == b"x"
    await mesh.all_released()


TENSOR = to_batch({"x": np.ones((1, 2), np.float32)}).SerializeToString()


class Chaos:
    """Random arrivals, cancellations, deadlines, failures and deaths of executors. Version v3 is batchable."""

    VERSIONS = ("v1", "v2", "v3")

    def __init__(self, mesh: RouterNode, seed: int) -> None:
        self.mesh, self.dice = mesh, random.Random(seed)
        self.endings: Counter[str] = Counter()

    async def play(self, requests: int) -> None:
        for version in self.VERSIONS:
            for _ in range(2):
                (await self.mesh.add_executor(version)).behaviour = Moody(self.dice)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._trouble())
            for number in range(requests):
                tasks.create_task(self._request(number))
                await asyncio.sleep(self.dice.random() * 0.004)

    async def _request(self, number: int) -> None:
        version, timeout_s = self.dice.choice(self.VERSIONS), self.dice.choice([0.02, 0.3, 10.0])
        batchable: dict[str, Any] = {"rows": 1, "batching": functions.Batching(max_batch_size=4), "inputs": TENSOR}
        infer = self.mesh.infer(
            f"r{number}", version_id=version, timeout_s=timeout_s, capacity=20, tenant=self.dice.choice(["a", "b"]),
            **(batchable if version == "v3" else {}),
        )  # fmt: skip
        call = asyncio.create_task(infer)
        if self.dice.random() < 0.2:
            asyncio.get_running_loop().call_later(self.dice.random() * 0.1, call.cancel)
        try:
            await call
            self.endings["COMPLETED"] += 1
        except RouseError as error:
            self.endings[error.reason] += 1
        except asyncio.CancelledError:
            self.endings["CANCELLED"] += 1

    async def _trouble(self) -> None:
        for _ in range(5):
            victim: ExecutorDouble = self.dice.choice(self.mesh.devices.executors[self.dice.choice(self.VERSIONS)])
            await victim.kill()
            await victim.start()
            self.mesh.devices.stale += self.dice.randint(0, 2)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_every_request_ends_once_and_every_lease_is_returned(
    mesh: RouterNode, seed: int
) -> None:
    chaos = Chaos(mesh, seed)
    await chaos.play(200)
    endings = chaos.endings
    assert endings.total() == 200
    assert endings["COMPLETED"] > 20
    known = {"COMPLETED", "CANCELLED", "DEADLINE_EXCEEDED", "QUEUE_FULL", "CANNOT_MEET_DEADLINE"}
    assert set(endings) <= known | {"DISPLACED", "FUNCTION_RAISED", "EXECUTOR_LOST", "NO_INSTANCE"}, endings
    await mesh.all_released()
    executors = [executor for executors in mesh.devices.executors.values() for executor in executors]
    assert all(executor.active == 0 for executor in executors)
    executed = sum((executor.executed for executor in executors), Counter[str]())
    # One whose batch failed runs again, alone; the batch is told by its first member's id.
    raised = {request for executor in executors for request in executor.behaviour.raised}  # type: ignore[attr-defined]
    assert all(count == 1 or request in raised for request, count in executed.items()), "a request ran twice"
    described = await mesh.stub.DescribeQueues(node.DescribeQueuesRequest(), timeout=5)
    assert {(row.queued, row.executing) for row in described.queues} == {(0, 0)}
    ended = sum(row.completed + row.failed + row.expired + row.refused for row in described.queues)
    # One that expired or was cancelled on its way never arrived.
    assert endings["COMPLETED"] <= ended <= 200
    assert set(Counter(record.request_id for record in mesh.usage.records).values()) == {1}


class Moody:
    """A function that takes a moment, a long moment, or fails."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.raised: set[str] = set()

    async def __call__(self, request: device.ExecuteRequest) -> device.ExecuteResponse:
        await asyncio.sleep(self._dice.choice([0, 0.001, 0.01, 0.05]))
        if self._dice.random() < 0.1:
            self.raised.add(request.request_id)
            raise Internal("FUNCTION_RAISED", "ValueError: bad mood")
        return device.ExecuteResponse(outputs=request.inputs, device_ms=1.0)
