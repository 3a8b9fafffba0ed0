"""One inference through the gateway: what reaches the node, what comes back, and what goes wrong on the way."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from rouse_cache import Windows
from rouse_common.errors import Internal, ResourceExhausted, Unavailable
from rouse_contracts import functions, inference, node
from rouse_gateway import metrics
from rouse_testkit.doubles_gateway import echo
from rouse_testkit.front import Front, eventually, floats, refused

Code = grpc.StatusCode


async def test_a_request_reaches_the_node_and_its_answer_the_client(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    answer = await front.infer("f", 1.0, 2.0, request_id="mine", output_names=["y"])
    assert [(t.name, t.datatype, list(t.shape), floats(t)) for t in answer.outputs] == [("y", "FP32", [2], [1.0, 2.0])]
    assert (answer.request_id, answer.function, answer.version) == ("mine", "f", "1")
    assert (answer.node_id, answer.device) == ("n0", "gpu0")
    assert answer.timings.execute_ms == 0.5
    assert answer.timings.total_ms > 0
    assert answer.timings.held_ms == 0
    assert len(answer.trace_id) == 32
    (seen,) = front.node.requests
    assert (seen.function, seen.version_id, list(seen.output_names), seen.queue_capacity) == ("f", "f-1", ["y"], 256)
    assert seen.request_id not in ("", "mine"), "bills tell requests apart by an id that no client repeats"


async def test_every_request_has_an_id_of_its_own(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    answers = [await front.infer("f", 1.0) for _ in range(3)]
    assert len({a.request_id for a in answers}) == 3
    assert [a.request_id for a in answers] == [r.request_id for r in front.node.requests]


async def test_the_inference_protocol_takes_the_same_way(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    answer = await front.model_infer("f", 3.0, id="seven")
    assert (answer.model_name, answer.model_version, answer.id) == ("f", "1", "seven")
    assert [(t.name, t.datatype, list(t.shape)) for t in answer.outputs] == [("y", "FP32", [1])]
    assert not answer.outputs[0].HasField("contents")
    assert list(answer.raw_output_contents) == [front.model_request("f", 3.0).raw_input_contents[0]]
    assert len(answer.parameters["rouse_trace_id"].string_param) == 32


async def test_large_tensors_pass_unchanged(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    values = [float(i) for i in range(1_000_000)]
    answer = await front.infer("f", *values)
    assert floats(answer.outputs[0]) == values
    raw = await front.model_infer("f", *values)
    assert raw.raw_output_contents[0] == answer.outputs[0].data


async def test_the_deadline_is_the_client_s_less_a_margin(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    await front.infer("f", 1.0, timeout=5)
    await front.infer("f", 1.0, timeout=None)
    await front.model_infer("f", 1.0, parameters={"timeout": inference.InferParameter(int64_param=2_000_000)})
    await front.model_infer(
        "f", 1.0, timeout=None, parameters={"timeout": inference.InferParameter(uint64_param=90_000_000)}
    )
    given = front.node.timeouts_s
    for seconds, most in zip(given, (5, 60, 2, 90), strict=True):
        assert most - 1.5 < seconds < most


@pytest.mark.parametrize("by_parameter", [True, False])
async def test_a_node_that_is_too_slow_is_a_deadline_exceeded_and_is_cancelled(
    front: Front, by_parameter: bool
) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()

    async def never(request: node.InferRequest) -> node.InferResponse:
        await asyncio.Event().wait()
        raise AssertionError

    front.node.behaviour = never
    if by_parameter:
        call = front.model_infer("f", 1.0, parameters={"timeout": inference.InferParameter(int64_param=100_000)})
    else:
        call = front.infer("f", 1.0, timeout=0.3)
    code, details, text = await refused(call)
    assert code is Code.DEADLINE_EXCEEDED
    if by_parameter:  # the client's own timer may come first otherwise
        assert (details.metadata["function"], details.metadata["node"]) == ("f", "n0")
        assert "function 'f'" in text
        assert len(details.metadata["trace_id"]) == 32
    await eventually(lambda: front.node.cancelled == 1, "the node's call is cancelled")


async def test_a_client_that_cancels_cancels_the_node_s_call(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()

    async def never(request: node.InferRequest) -> node.InferResponse:
        await asyncio.Event().wait()
        raise AssertionError

    front.node.behaviour = never
    before = metrics.REQUESTS.labels("f", "CANCELLED")._value.get()
    call = front.infer("f", 1.0)
    waiting = asyncio.ensure_future(call.code())
    await front.node.arrived.wait()
    call.cancel()
    assert await waiting is Code.CANCELLED
    await eventually(lambda: front.node.cancelled == 1, "the node's call is cancelled")
    await eventually(lambda: metrics.REQUESTS.labels("f", "CANCELLED")._value.get() == before + 1, "it is counted")


ANSWERED = {
    "queue full": ResourceExhausted("QUEUE_FULL", "256 requests wait already", retry_after_s=0.25),
    "raised": Internal("FUNCTION_RAISED", "ValueError: no", function="f"),
    "executor lost": Unavailable("EXECUTOR_LOST", "the instance died; the request may have run", node="n0"),
}


@pytest.mark.parametrize("what", ANSWERED)
async def test_what_the_node_answers_reaches_the_client_typed_and_is_not_repeated(front: Front, what: str) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    error = ANSWERED[what]

    async def fail(request: node.InferRequest) -> node.InferResponse:
        raise error

    front.node.behaviour = fail
    code, details, text = await refused(front.infer("f", 1.0))
    assert (code, details.reason, text) == (error.code, error.reason, error.message)
    assert details.retry_after_s == error.retry_after_s
    assert (details.metadata["function"], details.metadata["node"]) == ("f", "n0")
    assert len(front.node.requests) == 1


async def test_a_node_that_has_no_instance_sends_the_request_elsewhere(front: Front) -> None:
    other = await front.control.add_node("n1")
    front.control.add_function("f", nodes=["n0", "n1"])
    await front.publish()

    async def none(request: node.InferRequest) -> node.InferResponse:
        raise Unavailable("NO_INSTANCE", "no instance here")

    front.node.behaviour = none
    answers = [await front.infer("f", 1.0) for _ in range(4)]
    assert {a.node_id for a in answers} == {"n1"}
    assert len(other.requests) == 4
    assert front.node.requests, "one of two equal nodes is asked in turn"


async def test_a_node_that_cannot_be_connected_is_passed_over(front: Front) -> None:
    other = await front.control.add_node("n1")
    front.control.add_function("f", nodes=["n0", "n1"])
    await front.publish()
    await front.node.served.kill()
    answers = [await front.infer("f", 1.0) for _ in range(4)]
    assert {a.node_id for a in answers} == {"n1"}
    assert len(other.requests) == 4


async def test_a_node_that_comes_back_is_waited_for(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    await front.node.served.kill()
    before = metrics.REROUTED.labels("NODE_UNREACHABLE")._value.get()
    call = asyncio.ensure_future(front.infer("f", 4.0))
    await eventually(lambda: metrics.REROUTED.labels("NODE_UNREACHABLE")._value.get() > before, "it was tried")
    await front.node.served.start()
    answer = await call
    assert floats(answer.outputs[0]) == [4.0]
    assert answer.timings.held_ms > 0
    assert len(front.node.requests) == 1


async def test_a_connection_that_breaks_after_sending_is_not_repeated(front: Front) -> None:
    other = await front.control.add_node("n1")
    front.control.add_function("f", nodes=["n0"])
    await front.publish()

    async def never(request: node.InferRequest) -> node.InferResponse:
        await asyncio.Event().wait()
        raise AssertionError

    front.node.behaviour = never
    call = asyncio.ensure_future(refused(front.infer("f", 1.0)))
    await front.node.arrived.wait()
    front.control.set_ready("f", "n1")
    await front.publish()
    await front.node.served.kill()
    code, details, text = await call
    assert (code, details.reason) == (Code.UNAVAILABLE, "NODE_LOST")
    assert "may have run" in text
    assert details.metadata["node"] == "n0"
    assert not other.requests


async def test_an_answer_that_is_none_is_an_internal_error_that_names_the_node(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()

    async def garbage(request: node.InferRequest) -> node.InferResponse:
        return node.InferResponse(outputs=b"\xff\xff\xff")

    front.node.behaviour = garbage
    code, details, _ = await refused(front.infer("f", 1.0))
    assert (code, details.reason, details.metadata["node"]) == (Code.INTERNAL, "BAD_ANSWER", "n0")


async def test_requests_go_where_the_weights_are(front: Front) -> None:
    await front.control.add_node("n1")
    front.control.add_function("f", nodes=["n0", "n1"], weights=1000)
    front.control.residency = {("f-1", "n0"): "HOST", ("f-1", "n1"): "DEVICE"}
    await front.publish()
    assert {(await front.infer("f", 1.0)).node_id for _ in range(4)} == {"n1"}
    front.control.queued = {"n1": 50}
    await front.publish()
    assert {(await front.infer("f", 1.0)).node_id for _ in range(4)} == {"n0"}


async def test_arrivals_are_counted_also_of_refused_requests(front: Front, redis_url: str) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()

    async def full(request: node.InferRequest) -> node.InferResponse:
        raise ResourceExhausted("QUEUE_FULL", "full", retry_after_s=1.0)

    for _ in range(3):
        await front.infer("f", 1.0)
    front.node.behaviour = full
    await refused(front.infer("f", 1.0))
    await refused(front.infer("unknown", 1.0))
    windows = Windows.connect(redis_url)

    async def counted() -> bool:
        activity = await windows.activity(100)
        return set(activity) == {"f"} and activity["f"].arrivals == 4

    await eventually(counted, "four arrivals are in Redis")
    await windows.close()


async def test_metrics_count_by_function_and_code_and_forget_deleted_functions(front: Front) -> None:
    front.control.add_function("counted", nodes=["n0"])
    await front.publish()
    await front.infer("counted", 1.0)
    await refused(front.mesh.Infer(functions.InferRequest(function="counted"), timeout=5))
    await refused(front.infer("somebody-made-this-up", 1.0))

    def names() -> dict[tuple[str, str], float]:
        (family,) = metrics.REQUESTS.collect()
        return {(s.labels["function"], s.labels["code"]): s.value for s in family.samples if s.name.endswith("_total")}

    found = names()
    assert found[("counted", "OK")] == 1
    assert found[("counted", "INVALID_ARGUMENT")] == 1
    assert found[(metrics.UNKNOWN, "NOT_FOUND")] >= 1
    assert "somebody-made-this-up" not in {function for function, _ in found}
    await front.mesh.DeleteFunction(functions.DeleteFunctionRequest(name="counted"), timeout=5)
    assert "counted" not in {function for function, _ in names()}


async def test_echo_is_what_the_other_tests_believe_it_is() -> None:
    batch = functions.TensorBatch(tensors=[functions.Tensor(name="x1", datatype="BOOL", shape=[1], data=b"\1")])
    answer = await echo(node.InferRequest(inputs=batch.SerializeToString()))
    assert functions.TensorBatch.FromString(answer.outputs).tensors[0].name == "y1"
