"""ModelStreamInfer through the gateway: to the node and back, failures in band, cancellation, the gateway's end."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

import grpc
import pytest

from rouse_contracts import inference, node
from rouse_testkit.doubles_gateway import echo
from rouse_testkit.front import Front, eventually

WAIT_S = 30.0


def request(front: Front, value: float, request_id: str = "", model: str = "f") -> inference.ModelInferRequest:
    made = front.model_request(model, value)
    made.id = request_id
    return made


def value(response: inference.ModelStreamInferResponse) -> float:
    found: float = struct.unpack("<f", response.infer_response.raw_output_contents[0])[0]
    return found


@pytest.fixture
async def f(front: Front) -> Front:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    return front


async def test_requests_of_a_stream_are_answered_in_their_order(f: Front) -> None:
    count = 300
    call = f.models.ModelStreamInfer(iter([request(f, float(n), str(n)) for n in range(count)]), timeout=WAIT_S)
    got = [response async for response in call]
    assert [(r.infer_response.id, value(r)) for r in got] == [(str(n), float(n)) for n in range(count)]
    assert await call.code() is grpc.StatusCode.OK
    traces = {r.infer_response.parameters["rouse_trace_id"].string_param for r in got}
    assert len(traces) == count, "each request has a trace of its own"


async def test_failures_are_in_band(f: Front) -> None:
    bad = request(f, 1.0, "bad")
    bad.raw_input_contents[0] = b"abc"
    given = [request(f, 1.0, "1"), request(f, 1.0, "lost", "nobody"), bad, request(f, 2.0, "2")]
    got = [response async for response in f.models.ModelStreamInfer(iter(given), timeout=WAIT_S)]
    assert [r.infer_response.id for r in got] == ["1", "lost", "bad", "2"]
    assert got[1].error_message == "Request for unknown model: 'nobody' is not found"
    assert got[2].infer_response.parameters["rouse_reason"].string_param == "BAD_TENSOR"
    assert value(got[3]) == 2.0


async def test_a_client_that_asks_for_it_gets_failures_as_the_stream_s_status(f: Front) -> None:
    given = [request(f, 1.0, "lost", "nobody"), request(f, 2.0)]
    call = f.models.ModelStreamInfer(iter(given), timeout=WAIT_S, metadata=(("triton_grpc_error", "true"),))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [response async for response in call]
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def never(given: node.InferRequest) -> node.InferResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def test_cancelling_a_stream_cancels_all_that_it_has_at_work(f: Front) -> None:
    f.node.behaviour = never
    call: Any = f.models.ModelStreamInfer(timeout=WAIT_S)
    for number in range(5):
        await call.write(request(f, float(number)))
    await eventually(lambda: len(f.node.requests) == 5, "all are at the node")
    call.cancel()
    await eventually(lambda: f.node.cancelled == 5, "all are cancelled there")


async def test_a_gateway_that_stops_does_not_wait_for_idle_streams(f: Front) -> None:
    call: Any = f.models.ModelStreamInfer()
    await call.write(request(f, 1.0))
    assert value(await call.read()) == 1.0
    began = time.monotonic()
    await f.stop()
    assert time.monotonic() - began < WAIT_S
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert "stops" in await call.details()


async def test_a_request_of_a_stream_that_is_too_slow_fails_alone(f: Front) -> None:
    f.node.behaviour = never
    slow = request(f, 1.0, "slow")
    slow.parameters["timeout"].int64_param = 100_000
    call: Any = f.models.ModelStreamInfer(timeout=WAIT_S)
    await call.write(slow)
    failed = await call.read()
    assert failed.infer_response.parameters["rouse_reason"].string_param == "DEADLINE_EXCEEDED"
    f.node.behaviour = echo
    await call.write(request(f, 2.0))
    assert value(await call.read()) == 2.0
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
