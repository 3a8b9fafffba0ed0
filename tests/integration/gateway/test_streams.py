"""ModelStreamInfer through the gateway: to the node and back, failures in band, cancellation, the gateway's end."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from rouse_common.errors import InvalidArgument
from rouse_contracts import functions, inference, node
from rouse_testkit.doubles_gateway import echo
from rouse_testkit.front import Front, eventually, floats, fp32, refused

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


async def test_a_key_of_the_stream_does_not_make_its_requests_one(f: Front) -> None:
    keyed = (("idempotency-key", "k"),)
    given = [request(f, float(number)) for number in range(3)]
    got = [r async for r in f.models.ModelStreamInfer(iter(given), timeout=WAIT_S, metadata=keyed)]
    assert [value(r) for r in got] == [0.0, 1.0, 2.0]


async def test_a_key_of_a_request_makes_its_repetition_the_same_one(f: Front) -> None:
    given = request(f, 1.0)
    given.parameters["idempotency_key"].string_param = "once"
    for _ in range(2):
        got = [r async for r in f.models.ModelStreamInfer(iter([given]), timeout=WAIT_S)]
        assert value(got[0]) == 1.0
    assert len(f.node.requests) == 1


async def test_a_client_that_asks_for_it_gets_failures_as_the_stream_s_status(f: Front) -> None:
    given = [request(f, 1.0, "lost", "nobody"), request(f, 2.0)]
    call = f.models.ModelStreamInfer(iter(given), timeout=WAIT_S, metadata=(("triton_grpc_error", "true"),))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [response async for response in call]
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def thrice(given: node.InferRequest) -> AsyncIterator[node.InferResponse]:
    for _ in range(3):
        yield await echo(given)


@pytest.fixture
async def many(front: Front) -> Front:
    """The function "many" is decoupled and gives three responses."""
    front.control.add_function("many", nodes=["n0"], decoupled=True)
    front.node.behaviour = thrice
    await front.publish()
    return front


async def test_a_decoupled_function_answers_as_often_as_it_likes(many: Front) -> None:
    asks = request(many, 1.0, "1", "many")
    asks.parameters["triton_enable_empty_final_response"].bool_param = True
    got = [response async for response in many.models.ModelStreamInfer(iter([asks]), timeout=WAIT_S)]
    finals = [r.infer_response.parameters["triton_final_response"].bool_param for r in got]
    assert finals == [False, False, False, True]
    assert [value(r) for r in got[:3]] == [1.0] * 3
    assert not got[3].infer_response.outputs
    code, details, text = await refused(many.models.ModelInfer(request(many, 1.0, model="many"), timeout=WAIT_S))
    assert (code, details.reason) == (grpc.StatusCode.UNIMPLEMENTED, "NOT_ONE_RESPONSE")
    assert "decoupled transaction policy" in text


async def test_rouse_s_own_contract_streams_as_well(many: Front) -> None:
    given = functions.InferRequest(function="many", inputs=[fp32("x", 2.0)], request_id="mine")
    call = many.mesh.InferStream(functions.InferStreamRequest(request=given), timeout=WAIT_S)
    got = [message.response async for message in call]
    assert [(r.request_id, r.function, floats(r.outputs[0])) for r in got] == [("mine", "many", [2.0])] * 3
    code, details, _ = await refused(
        anext(aiter(many.mesh.InferStream(functions.InferStreamRequest(), timeout=WAIT_S)))
    )
    assert (code, details.reason) == (grpc.StatusCode.NOT_FOUND, "FUNCTION_NOT_FOUND")


async def test_what_a_request_says_of_itself_reaches_the_node(f: Front) -> None:
    said = request(f, 1.0)
    said.parameters["priority"].uint64_param = 2
    said.parameters["sequence_id"].string_param = "s"
    said.parameters["sequence_start"].bool_param = True
    said.parameters["depth"].int64_param = -3
    said.parameters["triton_own"].string_param = "nobody's"
    await f.models.ModelInfer(said, timeout=WAIT_S)
    options = functions.RequestOptions(priority=2, sequence=functions.Sequence(id="s", start=True))
    options.parameters["depth"].int64_value = -3
    assert f.node.requests[-1].options == options
    given = functions.InferRequest(function="f", inputs=[fp32("x", 2.0)], options=options)
    await f.mesh.Infer(given, timeout=WAIT_S)
    assert f.node.requests[-1].options == options
    given.options.sequence.id = ""
    code, details, _ = await refused(f.mesh.Infer(given, timeout=WAIT_S))
    assert (code, details.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_PARAMETER")


async def test_requests_of_a_sequence_all_go_to_one_node(front: Front) -> None:
    await front.control.add_node("n1")
    front.control.add_function("f", nodes=["n0", "n1"])
    await front.publish()
    nodes = front.control.nodes.values()
    for name in range(12):
        for position in range(4):
            said = request(front, 1.0)
            said.parameters["sequence_id"].int64_param = name + 1
            said.parameters["sequence_start"].bool_param = position == 0
            await front.models.ModelInfer(said, timeout=WAIT_S)
    seen = [{r.options.sequence.id for r in double.requests} for double in nodes]
    assert not seen[0] & seen[1], "a sequence was served by two nodes"
    assert all(seen), "all sequences went to one node"


async def test_a_sequence_stays_where_it_started_and_is_lost_with_its_node(front: Front) -> None:
    async def say(name: int, *, start: bool = False) -> None:
        said = request(front, 1.0)
        said.parameters["sequence_id"].int64_param = name
        said.parameters["sequence_start"].bool_param = start
        await front.models.ModelInfer(said, timeout=WAIT_S)

    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    names = range(1, 13)
    for name in names:
        await say(name, start=True)
    await front.control.add_node("n1")
    front.control.set_ready("f", "n1")
    await front.publish()
    for name in names:
        await say(name)
    assert not front.control.nodes["n1"].requests, "another node knows nothing of what n0 was told"
    instances = front.control.functions["f"].instances
    instances[:] = [found for found in instances if found[1] != "n0"]
    await front.publish()
    for _ in range(2):
        code, details, message = await refused(say(1))
        assert (code, details.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SEQUENCE_LOST")
        assert "start the sequence again" in message
    await say(1, start=True)
    await say(1)
    assert len(front.control.nodes["n1"].requests) == 2


async def test_a_node_that_was_restarted_has_lost_its_sequences(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()

    def said(*, start: bool) -> inference.ModelInferRequest:
        made = request(front, 1.0)
        made.parameters["sequence_id"].string_param = "s"
        made.parameters["sequence_start"].bool_param = start
        return made

    async def unknown(given: node.InferRequest) -> node.InferResponse:
        raise InvalidArgument("SEQUENCE_NOT_STARTED", "it was not started here", sequence="s")

    first = front.node.behaviour
    front.node.behaviour = unknown
    # It was never started: the node is right.
    code, details, _ = await refused(front.models.ModelInfer(said(start=False), timeout=WAIT_S))
    assert (code, details.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "SEQUENCE_NOT_STARTED")
    front.node.behaviour = first
    await front.models.ModelInfer(said(start=True), timeout=WAIT_S)
    front.node.behaviour = unknown
    code, details, _ = await refused(front.models.ModelInfer(said(start=False), timeout=WAIT_S))
    assert (code, details.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SEQUENCE_LOST")


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
