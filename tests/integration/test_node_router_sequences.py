"""Sequences over a node: one instance serves one, in order, until it ends or the instance does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rouse_common.errors import FailedPrecondition, InvalidArgument, Unavailable
from rouse_contracts import device, functions, node
from rouse_node_router.app import NodeRouter
from rouse_node_router.config import NodeRouterConfig
from rouse_testkit.doubles_node import ExecutorDouble
from rouse_testkit.router_node import Held, RouterNode, router_node


def make_router(**options: Any) -> NodeRouter:
    return NodeRouter(NodeRouterConfig(**options))


class Remembering:
    """A stateful function: what it was sent of a sequence so far."""

    def __init__(self) -> None:
        self.heard: dict[str, list[str]] = {}

    async def __call__(self, request: device.ExecuteRequest) -> device.ExecuteResponse:
        heard = self.heard.setdefault(request.options.sequence.id, [])
        heard.append(request.inputs.decode())
        return device.ExecuteResponse(outputs=",".join(heard).encode(), device_ms=1.0)


@pytest.fixture
async def mesh(tmp_path: Path, redis_url: str) -> AsyncIterator[RouterNode]:
    async with router_node(make_router, tmp_path, redis_url) as made:
        for _ in range(3):
            (await made.add_executor()).behaviour = Remembering()
        yield made


async def say(mesh: RouterNode, word: str, sequence: str = "s", **place: bool) -> node.InferResponse:
    options = functions.RequestOptions(sequence=functions.Sequence(id=sequence, **place))
    return await mesh.infer(f"{sequence}-{word}", inputs=word.encode(), options=options)


def serving(mesh: RouterNode, sequence: str) -> list[ExecutorDouble]:
    return [
        executor
        for executor in mesh.devices.executors["v1"]
        if isinstance(executor.behaviour, Remembering) and sequence in executor.behaviour.heard
    ]


async def test_a_sequence_stays_with_its_instance(mesh: RouterNode) -> None:
    names = [f"s{number}" for number in range(6)]
    for name in names:
        await say(mesh, "a", name, start=True)
    await asyncio.gather(*[say(mesh, word, name) for word in "bcd" for name in names])
    for name in names:
        assert (await say(mesh, "e", name, end=True)).outputs == b"a,b,c,d,e"
        assert len(serving(mesh, name)) == 1
    with pytest.raises(InvalidArgument, match="was not started here") as refused:
        await say(mesh, "f", "s0")
    assert refused.value.reason == "SEQUENCE_NOT_STARTED"


async def test_its_requests_wait_for_their_instance_though_others_are_free(mesh: RouterNode) -> None:
    await say(mesh, "a", start=True)
    (executor,) = serving(mesh, "s")
    remembering, executor.behaviour = executor.behaviour, Held()
    busy = [asyncio.create_task(mesh.infer(f"r{number}")) for number in range(3)]
    await executor.behaviour.started.get()
    later = asyncio.create_task(say(mesh, "b"))
    await mesh.devices.until(lambda: mesh.devices.waiting == 1)
    assert (await mesh.infer("other")).outputs.startswith(b"in")
    go, executor.behaviour = executor.behaviour.go, remembering
    go.set()
    assert (await later).outputs == b"a,b"
    await asyncio.gather(*busy)


async def test_where_its_instance_is_gone_it_is_lost_until_it_starts_again(mesh: RouterNode) -> None:
    await say(mesh, "a", start=True)
    (executor,) = serving(mesh, "s")
    mesh.devices.executors["v1"].remove(executor)
    for word in "bc":
        with pytest.raises(FailedPrecondition, match="start the sequence again") as lost:
            await say(mesh, word)
        assert lost.value.reason == "SEQUENCE_LOST"
    assert (await say(mesh, "d", start=True)).outputs == b"d"
    assert (await say(mesh, "e")).outputs == b"d,e"


async def test_an_instance_that_dies_with_a_request_loses_the_sequence(mesh: RouterNode) -> None:
    await say(mesh, "a", start=True)
    (executor,) = serving(mesh, "s")
    executor.behaviour = held = Held()
    call = asyncio.create_task(say(mesh, "b"))
    await held.started.get()
    await executor.kill()
    with pytest.raises(Unavailable) as gone:
        await call
    assert gone.value.reason == "EXECUTOR_LOST"
    with pytest.raises(FailedPrecondition) as lost:
        await say(mesh, "c")
    assert lost.value.reason == "SEQUENCE_LOST"


async def test_a_first_request_that_fails_starts_nothing(mesh: RouterNode) -> None:
    mesh.devices.refusals.append(FailedPrecondition("MODEL_TOO_LARGE", "too large"))
    with pytest.raises(FailedPrecondition, match="too large"):
        await say(mesh, "a", start=True)
    with pytest.raises(InvalidArgument):
        await say(mesh, "b")
