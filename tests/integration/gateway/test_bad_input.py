"""Whatever is wrong with a request over the raw protocols: one typed error, and the next one is served."""

from __future__ import annotations

import struct
from typing import Any

import grpc
import pytest

from rouse_contracts import functions, inference
from rouse_testkit.front import Front, floats, fp32, refused

Code = grpc.StatusCode
Request = inference.ModelInferRequest
Contents = inference.InferTensorContents


def model(*tensors: Request.InferInputTensor, raw: list[bytes] | None = None, **fields: Any) -> Request:
    return Request(model_name="f", inputs=tensors, raw_input_contents=raw or [], **fields)


def tensor(
    datatype: str = "FP32", shape: tuple[int, ...] = (2,), name: str = "x", **fields: Any
) -> Request.InferInputTensor:
    return Request.InferInputTensor(name=name, datatype=datatype, shape=shape, **fields)


FLOATS = Contents(fp32_contents=[1, 2])
RAW = struct.pack("<2f", 1, 2)
SHARED = {
    "shared_memory_region": inference.InferParameter(string_param="r"),
    "shared_memory_byte_size": inference.InferParameter(int64_param=8),
}

BAD_MODEL_REQUESTS = {
    "raw and typed": (model(tensor(contents=FLOATS), raw=[RAW]), Code.INVALID_ARGUMENT, "BAD_CONTENTS"),
    "two raw for one input": (model(tensor(), raw=[RAW, RAW]), Code.INVALID_ARGUMENT, "BAD_CONTENTS"),
    "neither": (model(tensor()), Code.INVALID_ARGUMENT, "BAD_TENSOR"),
    "typed in the wrong field": (
        model(tensor(contents=Contents(int_contents=[1, 2]))),
        Code.INVALID_ARGUMENT,
        "BAD_CONTENTS",
    ),
    "typed in two fields": (
        model(tensor(contents=Contents(int_contents=[1, 2], fp32_contents=[1, 2]))),
        Code.INVALID_ARGUMENT,
        "BAD_CONTENTS",
    ),
    "too few typed": (model(tensor(contents=Contents(fp32_contents=[1]))), Code.INVALID_ARGUMENT, "BAD_TENSOR"),
    "typed half floats": (model(tensor("FP16", contents=FLOATS)), Code.INVALID_ARGUMENT, "BAD_CONTENTS"),
    "raw one byte short": (model(tensor(), raw=[RAW[:-1]]), Code.INVALID_ARGUMENT, "BAD_TENSOR"),
    "raw one byte long": (model(tensor(), raw=[RAW + b"\0"]), Code.INVALID_ARGUMENT, "BAD_TENSOR"),
    "negative size": (model(tensor(shape=(-2,)), raw=[RAW]), Code.INVALID_ARGUMENT, "BAD_TENSOR"),
    "sizes that overflow": (model(tensor(shape=(2**62,)), raw=[RAW]), Code.INVALID_ARGUMENT, "BAD_TENSOR"),
    "no datatype": (model(tensor(""), raw=[RAW]), Code.INVALID_ARGUMENT, "BAD_TENSOR"),
    "unknown datatype": (model(tensor("FP7", contents=FLOATS)), Code.INVALID_ARGUMENT, "BAD_TENSOR"),
    "no name": (model(tensor(name=""), raw=[RAW]), Code.INVALID_ARGUMENT, "UNKNOWN_INPUT"),
    "an output twice": (
        model(tensor(), raw=[RAW], outputs=[Request.InferRequestedOutputTensor(name="y")] * 2),
        Code.INVALID_ARGUMENT,
        "DUPLICATE_OUTPUT",
    ),
    "input in shared memory": (model(tensor(parameters=SHARED)), Code.NOT_FOUND, "REGION_NOT_FOUND"),
    "output in shared memory": (
        model(tensor(), raw=[RAW], outputs=[Request.InferRequestedOutputTensor(name="y", parameters=SHARED)]),
        Code.NOT_FOUND,
        "REGION_NOT_FOUND",
    ),
    "a place without a size": (
        model(tensor(parameters={"shared_memory_region": SHARED["shared_memory_region"]})),
        Code.INVALID_ARGUMENT,
        "BAD_SHARED_MEMORY",
    ),
    "contents beside shared memory": (
        model(tensor(parameters=SHARED, contents=FLOATS)),
        Code.INVALID_ARGUMENT,
        "BAD_CONTENTS",
    ),
    "classes in words": (
        model(
            tensor(),
            raw=[RAW],
            outputs=[
                Request.InferRequestedOutputTensor(
                    name="y", parameters={"classification": inference.InferParameter(string_param="2")}
                )
            ],
        ),
        Code.INVALID_ARGUMENT,
        "BAD_PARAMETER",
    ),
    "a sequence's start without its id": (
        model(tensor(), raw=[RAW], parameters={"sequence_start": inference.InferParameter(bool_param=True)}),
        Code.INVALID_ARGUMENT,
        "BAD_PARAMETER",
    ),
    "a priority below zero": (
        model(tensor(), raw=[RAW], parameters={"priority": inference.InferParameter(int64_param=-1)}),
        Code.INVALID_ARGUMENT,
        "BAD_PARAMETER",
    ),
    "too many parameters": (
        model(
            tensor(),
            raw=[RAW],
            parameters={f"p{number}": inference.InferParameter(bool_param=True) for number in range(65)},
        ),
        Code.INVALID_ARGUMENT,
        "BAD_PARAMETER",
    ),
    "negative timeout": (
        model(tensor(), raw=[RAW], parameters={"timeout": inference.InferParameter(int64_param=-1)}),
        Code.INVALID_ARGUMENT,
        "BAD_TIMEOUT",
    ),
    "timeout in words": (
        model(tensor(), raw=[RAW], parameters={"timeout": inference.InferParameter(string_param="soon")}),
        Code.INVALID_ARGUMENT,
        "BAD_TIMEOUT",
    ),
    "timeout too short": (
        model(tensor(), raw=[RAW], parameters={"timeout": inference.InferParameter(int64_param=1)}),
        Code.DEADLINE_EXCEEDED,
        "DEADLINE_EXCEEDED",
    ),
    "no model": (Request(), Code.NOT_FOUND, "FUNCTION_NOT_FOUND"),
}

BAD_BYTES = {
    "cut off": (b"\x0a\xff", Code.INVALID_ARGUMENT, "MALFORMED_REQUEST"),
    "a group": (b"\x0b\x0c", Code.INVALID_ARGUMENT, "MALFORMED_REQUEST"),
    "not UTF-8": (b"\x0a\x01\xff", Code.INVALID_ARGUMENT, "MALFORMED_REQUEST"),
    "an endless number": (b"\xff" * 12, Code.INVALID_ARGUMENT, "MALFORMED_REQUEST"),
    "nothing": (b"", Code.NOT_FOUND, "FUNCTION_NOT_FOUND"),
}


@pytest.fixture
async def f(front: Front) -> Front:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    return front


@pytest.mark.parametrize("what", BAD_MODEL_REQUESTS)
async def test_a_bad_model_infer_gets_its_typed_error(f: Front, what: str) -> None:
    request, code, reason = BAD_MODEL_REQUESTS[what]
    got, details, text = await refused(f.models.ModelInfer(request, timeout=5))
    assert (got, details.reason) == (code, reason), text
    assert details.metadata["function"] == request.model_name
    assert not f.node.requests
    assert floats((await f.infer("f", 1.0)).outputs[0]) == [1.0]


@pytest.mark.parametrize(
    "method", ["inference.GRPCInferenceService/ModelInfer", "rouse.functions.v1.FunctionService/Infer"]
)
@pytest.mark.parametrize("what", BAD_BYTES)
async def test_bytes_that_are_no_request_get_a_typed_error(f: Front, method: str, what: str) -> None:
    data, code, reason = BAD_BYTES[what]
    got, details, text = await refused(f.channel.unary_unary(f"/{method}")(data, timeout=5))
    assert (got, details.reason) == (code, reason), text


BAD_CALLS = {
    "unknown function": (functions.InferRequest(function="g"), Code.NOT_FOUND, "FUNCTION_NOT_FOUND"),
    "unknown version": (functions.InferRequest(function="f", version="2"), Code.NOT_FOUND, "VERSION_NOT_FOUND"),
    "a version in other digits": (
        functions.InferRequest(function="f", version="٢"),
        Code.INVALID_ARGUMENT,
        "BAD_VERSION",
    ),
    "no input": (functions.InferRequest(function="f"), Code.INVALID_ARGUMENT, "MISSING_INPUT"),
    "an input twice": (
        functions.InferRequest(function="f", inputs=[fp32("x", 1), fp32("x", 1)]),
        Code.INVALID_ARGUMENT,
        "DUPLICATE_INPUT",
    ),
    "an unknown output": (
        functions.InferRequest(function="f", inputs=[fp32("x", 1)], output_names=["w"]),
        Code.INVALID_ARGUMENT,
        "UNKNOWN_OUTPUT",
    ),
}


@pytest.mark.parametrize("what", BAD_CALLS)
async def test_a_bad_infer_gets_its_typed_error(f: Front, what: str) -> None:
    request, code, reason = BAD_CALLS[what]
    got, details, _ = await refused(f.mesh.Infer(request, timeout=5))
    assert (got, details.reason) == (code, reason)
    assert len(details.metadata["trace_id"]) == 32


async def test_typed_contents_arrive_as_raw_ones_do(f: Front) -> None:
    raw = await f.models.ModelInfer(model(tensor(), raw=[RAW]), timeout=5)
    typed = await f.models.ModelInfer(model(tensor(contents=FLOATS)), timeout=5)
    assert list(raw.raw_output_contents) == list(typed.raw_output_contents) == [RAW]
    assert f.node.requests[0].inputs == f.node.requests[1].inputs


async def test_many_typed_contents_are_served(f: Front) -> None:
    values = [float(i) for i in range(100_000)]
    request = model(tensor(shape=(len(values),), contents=Contents(fp32_contents=values)))
    answer = await f.models.ModelInfer(request, timeout=10)
    assert answer.raw_output_contents[0] == struct.pack(f"<{len(values)}f", *values)
