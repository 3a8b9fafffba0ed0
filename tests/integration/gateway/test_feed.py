"""The routing table under bad weather: neighbours that start late, restart, or lose their past."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from rouse_bus import Bus
from rouse_contracts import functions, inference, node
from rouse_embedded.stores import Nats
from rouse_gateway import metrics, table_feed
from rouse_gateway.app import GatewayApp
from rouse_gateway.config import GatewayConfig
from rouse_testkit.doubles_gateway import Control
from rouse_testkit.front import Front, eventually, floats, refused
from rouse_testkit.running import running

Code = grpc.StatusCode


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetches again sooner than in production."""
    monkeypatch.setattr(table_feed, "REFETCH_S", 0.1)


async def test_a_gateway_that_starts_first_waits_for_cluster_manager(control: Control, config: GatewayConfig) -> None:
    await control.cluster_server.stop()
    async with running(GatewayApp(config)) as service:
        address = await service.ready()
        async with grpc.aio.insecure_channel(address) as channel:
            stub = inference.GRPCInferenceServiceStub(channel)
            assert (await stub.ServerLive(inference.ServerLiveRequest(), timeout=5)).live
            assert not (await stub.ServerReady(inference.ServerReadyRequest(), timeout=5)).ready
            code, details, _ = await refused(stub.ModelInfer(Front.model_request("f", 1.0), timeout=5))
            assert (code, details.reason) == (Code.UNAVAILABLE, "NOT_READY")
            control.add_function("f", nodes=["n0"])
            await control.cluster_server.start()

            async def served() -> bool:
                return bool((await stub.ServerReady(inference.ServerReadyRequest(), timeout=5)).ready)

            await eventually(served, "the gateway is ready")
            await stub.ModelInfer(Front.model_request("f", 1.0), timeout=5)


async def test_the_last_table_serves_while_cluster_manager_is_away(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    await front.control.cluster_server.stop()
    await front.control.scaler_server.stop()
    for _ in range(3):
        assert floats((await front.infer("f", 1.0)).outputs[0]) == [1.0]
    code, _, _ = await refused(front.mesh.ListFunctions(functions.ListFunctionsRequest(), timeout=5))
    assert code is Code.UNAVAILABLE


@pytest.mark.usefixtures("quickly")
async def test_a_message_that_was_lost_is_made_up_for_by_fetching(front: Front) -> None:
    front.control.bus = None
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    assert floats((await front.infer("f", 1.0)).outputs[0]) == [1.0]


@pytest.mark.usefixtures("quickly")
async def test_the_gateway_finds_a_restarted_cluster_manager_again(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    await front.control.cluster_server.stop()
    await front.infer("f", 1.0)
    await front.control.cluster_server.start()
    front.control.bus = None
    front.control.add_function("g", nodes=["n0"])
    await front.publish()
    await front.infer("g", 1.0)


async def test_the_gateway_finds_a_restarted_nats_again(front: Front, nats: Nats) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    nats.kill()
    await front.infer("f", 1.0)
    front.control.add_function("g", nodes=["n0"])
    front.control.generation += 1  # published to nobody
    nats.start()
    await front.settled()
    await front.infer("g", 1.0)
    assert isinstance(front.control.bus, Bus)
    await front.control.bus.wait_connected()
    front.control.add_function("h", nodes=["n0"])
    await front.publish()
    await front.infer("h", 1.0)


async def test_a_table_that_is_too_large_for_a_message_is_fetched(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    front.control.generation += 1
    assert front.control.bus is not None
    await front.control.bus.publish("rouse.routing", b"")
    await front.settled()
    await front.infer("f", 1.0)


async def test_older_tables_and_garbage_change_nothing(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    stale = front.control.table()
    del stale.functions[:]
    await front.publish()
    assert front.control.bus is not None
    await front.control.bus.publish("rouse.routing", stale.SerializeToString())
    await front.control.bus.publish("rouse.routing", b"\xff\xff\xff\xff")
    front.control.add_function("g", nodes=["n0"])
    await front.publish()  # behind the others
    await front.infer("f", 1.0)
    await front.infer("g", 1.0)


@pytest.mark.usefixtures("quickly")
async def test_a_control_plane_that_was_set_up_anew_is_believed(front: Front) -> None:
    front.control.generation = 1000
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    front.control.generation = 1
    front.control.functions.clear()
    front.control.add_function("g", nodes=["n0"])
    await front.publish()
    await front.infer("g", 1.0)
    assert (await refused(front.infer("f", 1.0)))[0] is Code.NOT_FOUND


async def test_stopping_lets_calls_in_flight_end(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    gate = asyncio.Event()
    echo = front.node.behaviour

    async def gated(request: node.InferRequest) -> node.InferResponse:
        await gate.wait()
        return await echo(request)

    front.node.behaviour = gated
    call = asyncio.ensure_future(front.infer("f", 2.0))
    await front.node.arrived.wait()
    ended = asyncio.ensure_future(front.stop())
    gate.set()
    assert floats((await call).outputs[0]) == [2.0]
    await ended


async def test_stopping_ends_requests_that_are_held_after_the_drain(front: Front) -> None:
    async def never(name: str, version_id: str) -> None: ...

    front.control.add_function("f")
    front.control.on_wake = never
    await front.publish()
    call = asyncio.ensure_future(refused(front.infer("f", 1.0)))
    await eventually(lambda: metrics.HELD._value.get() == 1, "the request is held")
    async with asyncio.timeout(8):
        await front.stop()
    code, _, _ = await call
    assert code in (Code.UNAVAILABLE, Code.CANCELLED)
    assert metrics.HELD._value.get() == 0
