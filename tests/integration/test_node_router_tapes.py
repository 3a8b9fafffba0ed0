"""Requests that a device's executor answers by a tape, and what becomes of them where it does not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rouse_common.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    RouseError,
    Unavailable,
)
from rouse_common.link import Incoming
from rouse_contracts import device, functions, tapes
from rouse_contracts.arrays import to_batch
from rouse_contracts.links import EXECUTE
from rouse_node_router.app import NodeRouter
from rouse_node_router.config import NodeRouterConfig
from rouse_testkit.links import Linked
from rouse_testkit.router_node import RouterNode, router_node

X = to_batch({"x": np.ones((2, 3), np.float32)}).SerializeToString()
KEY = "x:FP32:2,3;"


class CoreDouble:
    """A device's executor: `answer` says what it does with a request that it has a tape for."""

    def __init__(self, folder: Path) -> None:
        self.link = f"unix:{folder}/core.link"
        self.asked: Counter[str] = Counter()
        self.error: RouseError | None = None
        self.hangs = asyncio.Event()
        self.started = asyncio.Event()
        self.hangs.set()
        self._link = Linked(self.link)
        self._link.add(EXECUTE, device.ExecuteRequest, self._execute)

    async def start(self) -> None:
        await self._link.start()

    async def kill(self) -> None:
        await self._link.kill()

    async def _execute(self, request: device.ExecuteRequest, call: Incoming) -> device.ExecuteResponse:
        assert request.lease_id == "mapped/1"
        self.asked[request.request_id] += 1
        self.started.set()
        await self.hangs.wait()
        if self.error is not None:
            raise self.error
        return device.ExecuteResponse(outputs=b"taped", device_ms=4.0)


def make_router(**options: Any) -> NodeRouter:
    return NodeRouter(NodeRouterConfig(**options))


@pytest.fixture
async def mesh(tmp_path: Path, redis_url: str) -> AsyncIterator[RouterNode]:
    async with router_node(make_router, tmp_path, redis_url) as made:
        yield made


@pytest.fixture
async def core(mesh: RouterNode) -> AsyncIterator[CoreDouble]:
    made = CoreDouble(mesh.folder)
    await made.start()
    mesh.devices.tapes = device.TapeAccess(link=made.link, lease_id="mapped/1", keys=[KEY])
    yield made
    await made.kill()


async def test_a_tape_answers_and_the_instance_is_left_alone(mesh: RouterNode, core: CoreDouble) -> None:
    executor = await mesh.add_executor()
    answer = await mesh.infer("r", inputs=X)
    assert answer.outputs == b"taped"
    assert answer.timings.execute_ms == 4.0
    assert not executor.executed
    await mesh.all_released()
    (release,) = mesh.devices.releases
    assert (release.device_ms, release.requests, release.replays, release.abandoned) == (4.0, 1, 1, False)
    assert (await mesh.usage.until(1))["r"].device_ms == 4.0


async def test_other_inputs_and_sequences_are_the_instance_s(mesh: RouterNode, core: CoreDouble) -> None:
    executor = await mesh.add_executor()
    other = to_batch({"x": np.ones((1, 3), np.float32)}).SerializeToString()
    assert (await mesh.infer("other", inputs=other)).outputs == other
    assert (await mesh.infer("odd", inputs=b"\xff")).outputs == b"\xff"
    sequence = functions.Sequence(id="s", start=True)
    options = functions.RequestOptions(sequence=sequence)
    assert (await mesh.infer("sequence", inputs=X, options=options)).outputs == X
    assert not core.asked
    assert set(executor.executed) == {"other", "odd", "sequence"}
    await mesh.all_released()
    assert sum(release.replays for release in mesh.devices.releases) == 0


@pytest.mark.parametrize(
    "error",
    [
        FailedPrecondition("GUARD_MISSED", "values lead another way"),
        FailedPrecondition("NO_TAPE", "none"),
        FailedPrecondition("STALE_LEASE", "it was mapped anew"),
        Internal("REPLAY_FAILED", "an operator failed"),
        ResourceExhausted("TOO_MANY_CALLS", "too many wait"),
        InvalidArgument("BAD_INPUT", "no batch"),
    ],
    ids=lambda error: error.reason,
)
async def test_what_a_tape_does_not_answer_is_executed_once(
    mesh: RouterNode, core: CoreDouble, error: RouseError
) -> None:
    executor, core.error = await mesh.add_executor(), error
    assert (await mesh.infer("r", inputs=X)).outputs == X
    assert (core.asked, executor.executed) == (Counter(r=1), Counter(r=1))
    await mesh.all_released()
    assert [(release.requests, release.replays) for release in mesh.devices.releases] == [(1, 0)]


async def test_an_executor_that_is_not_there_leaves_it_to_the_instance(mesh: RouterNode, core: CoreDouble) -> None:
    executor = await mesh.add_executor()
    await core.kill()
    assert (await mesh.infer("r", inputs=X)).outputs == X
    assert executor.executed == {"r": 1}


async def test_an_executor_that_dies_in_a_replay_is_one_typed_error(mesh: RouterNode, core: CoreDouble) -> None:
    executor = await mesh.add_executor()
    core.hangs.clear()
    call = asyncio.create_task(mesh.infer("r", inputs=X))
    await core.started.wait()
    await core.kill()
    with pytest.raises(Unavailable) as lost:
        await call
    assert lost.value.reason == "EXECUTOR_LOST"
    assert not executor.executed
    await mesh.all_released()
    assert [release.abandoned for release in mesh.devices.releases] == [True]


# ---- without an instance ------------------------------------------------------------------------


async def test_tapes_answer_where_there_is_no_instance(mesh: RouterNode, core: CoreDouble) -> None:
    answer = await mesh.infer("r", inputs=X, tapes_only=True)
    assert (answer.outputs, answer.device) == (b"taped", "cpu0")
    await mesh.all_released()
    (release,) = mesh.devices.releases
    assert (release.device_ms, release.requests, release.replays, release.abandoned) == (4.0, 1, 1, False)
    assert (await mesh.usage.until(1))["r"].device_ms == 4.0
    assert (await mesh.row()).completed == 1


async def test_who_asks_one_after_the_other_is_counted_once_each(mesh: RouterNode, core: CoreDouble) -> None:
    for number in range(5):
        assert (await mesh.infer(f"r{number}", inputs=X, tapes_only=True)).outputs == b"taped"
    await mesh.all_released()
    assert sum(release.requests for release in mesh.devices.releases) == 5
    assert sum(release.replays for release in mesh.devices.releases) == 5
    assert not any(release.abandoned for release in mesh.devices.releases)


async def test_many_at_once_are_each_answered_once(mesh: RouterNode, core: CoreDouble) -> None:
    await asyncio.gather(*(mesh.infer(f"r{i}", inputs=X, tapes_only=True) for i in range(50)))
    assert core.asked == Counter({f"r{i}": 1 for i in range(50)})
    await mesh.all_released()


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (to_batch({"x": np.ones((1, 3), np.float32)}).SerializeToString(), None),
        (b"\xff", None),
        (X, functions.RequestOptions(sequence=functions.Sequence(id="s", start=True))),
    ],
    ids=["other inputs", "no batch", "a sequence"],
)
async def test_what_has_no_tape_is_told_that_there_is_no_instance(
    mesh: RouterNode, core: CoreDouble, inputs: bytes, options: functions.RequestOptions | None
) -> None:
    mesh.devices.refusals.append(Unavailable("NO_EXECUTOR", "nobody serves it"))
    with pytest.raises(Unavailable) as refused:
        await mesh.infer("r", inputs=inputs, options=options, tapes_only=True)
    assert refused.value.reason == "NO_INSTANCE"
    assert not core.asked
    await mesh.all_released()
    assert not mesh.usage.records


async def test_a_tape_that_refuses_leaves_it_to_an_instance_or_to_nobody(mesh: RouterNode, core: CoreDouble) -> None:
    core.error = FailedPrecondition("GUARD_MISSED", "values lead another way")
    mesh.devices.refusals.append(Unavailable("NO_EXECUTOR", "nobody serves it"))
    with pytest.raises(Unavailable) as refused:
        await mesh.infer("alone", inputs=X, tapes_only=True)
    assert refused.value.reason == "NO_INSTANCE"
    # An instance has come, and the gateway does not know of it yet.
    executor = await mesh.add_executor()
    mesh.devices.tapes = device.TapeAccess(link=core.link, lease_id="mapped/1", keys=[KEY])
    assert (await mesh.infer("r", inputs=X, tapes_only=True)).outputs == X
    assert executor.executed == {"r": 1}
    await mesh.all_released()
    assert not any(release.abandoned for release in mesh.devices.releases)


async def test_a_gpu_server_that_restarts_meanwhile_is_asked_for_tapes_again(
    mesh: RouterNode, core: CoreDouble
) -> None:
    mesh.devices.refusals.append(Unavailable("GPU_SERVER_LOST", "it went away"))
    assert (await mesh.infer("r", inputs=X, tapes_only=True)).outputs == b"taped"
    assert core.asked == {"r": 1}
    await mesh.all_released()


async def test_without_an_instance_an_executor_that_dies_in_a_replay_is_one_typed_error(
    mesh: RouterNode, core: CoreDouble
) -> None:
    core.hangs.clear()
    call = asyncio.create_task(mesh.infer("r", inputs=X, tapes_only=True))
    await core.started.wait()
    await core.kill()
    with pytest.raises(Unavailable) as lost:
        await call
    assert lost.value.reason == "EXECUTOR_LOST"
    await mesh.all_released()
    assert [release.abandoned for release in mesh.devices.releases] == [True]


async def test_a_replay_that_is_cancelled_gives_its_lease_back_as_abandoned(mesh: RouterNode, core: CoreDouble) -> None:
    core.hangs.clear()
    call = asyncio.create_task(mesh.infer("r", inputs=X, tapes_only=True))
    await core.started.wait()
    call.cancel()
    await mesh.all_released()
    assert [release.abandoned for release in mesh.devices.releases] == [True]
    core.hangs.set()


async def test_the_names_of_tapes_are_those_of_requests() -> None:
    assert tapes.key([tapes.Input("x", "FP32", (2, 3))]) == KEY
