"""Requests of the inference protocol, well-formed or not: a list of tensors or a typed error, nothing else."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common.errors import InvalidArgument
from rouse_contracts import functions, inference
from rouse_contracts.arrays import to_array
from rouse_contracts.cluster import RoutingTable
from rouse_contracts.tensors import DATATYPES
from rouse_gateway import protocol
from rouse_gateway.asked import Answer
from rouse_gateway.checks import check_request
from rouse_gateway.oip.requests import Reply
from rouse_gateway.state import Version, index
from rouse_gateway.wire import TensorView

Request = inference.ModelInferRequest
texts = st.sampled_from(["x", "y", "", "f", "FP32", "ü"]) | st.text(max_size=4)
datatypes = st.sampled_from(sorted(DATATYPES)) | st.text(max_size=5)
parameters = st.dictionaries(
    st.sampled_from(
        [
            "timeout",
            "sequence_id",
            "sequence_start",
            "priority",
            "shared_memory_region",
            "shared_memory_byte_size",
            "own",
            "classification",
            "idempotency_key",
        ]
    ),
    st.one_of(
        st.builds(lambda v: inference.InferParameter(int64_param=v), st.integers(-(2**63), 2**63 - 1)),
        st.builds(lambda v: inference.InferParameter(uint64_param=v), st.integers(0, 2**64 - 1)),
        st.builds(lambda v: inference.InferParameter(string_param=v), st.text(max_size=3)),
        st.builds(lambda v: inference.InferParameter(bool_param=v), st.booleans()),
        st.just(inference.InferParameter()),
    ),
    max_size=2,
)
contents = st.builds(
    inference.InferTensorContents,
    bool_contents=st.lists(st.booleans(), max_size=2),
    int_contents=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=2),
    int64_contents=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2),
    uint_contents=st.lists(st.integers(0, 2**32 - 1), max_size=2),
    fp32_contents=st.lists(st.floats(width=32), max_size=2),
    bytes_contents=st.lists(st.binary(max_size=4), max_size=2),
)
input_tensors = st.builds(
    Request.InferInputTensor,
    name=texts,
    datatype=datatypes,
    shape=st.lists(st.integers(-2, 5) | st.just(2**62), max_size=3),
    parameters=parameters,
    contents=st.none() | contents,
)
requests = st.builds(
    Request,
    model_name=texts,
    model_version=texts,
    id=texts,
    parameters=parameters,
    inputs=st.lists(input_tensors, max_size=3),
    outputs=st.lists(st.builds(Request.InferRequestedOutputTensor, name=texts, parameters=parameters), max_size=2),
    raw_input_contents=st.lists(st.binary(max_size=24), max_size=3),
)


def version(datatype: str = "FP32", shape: tuple[int, ...] = (-1,)) -> Version:
    spec = functions.FunctionSpec(
        name="f",
        signature=functions.Signature(
            inputs=[functions.TensorSpec(name="x", datatype=datatype, shape=shape)],
            outputs=[functions.TensorSpec(name="y", datatype=datatype, shape=shape)],
        ),
    )
    table = RoutingTable(generation=1)
    table.functions.add(
        name="f", versions=[functions.FunctionVersion(version_id="v", version=1, spec=spec)], active_version_id="v"
    )
    return index(table).version("f", "")


@given(requests | st.binary(max_size=60), st.sampled_from(["FP32", "BYTES", "INT8"]))
async def test_any_request_is_read_or_refused_with_a_typed_error(given_request: Request | bytes, datatype: str) -> None:
    data = given_request if isinstance(given_request, bytes) else given_request.SerializeToString()
    wanted = version(datatype)
    try:
        request = protocol.read_request(*protocol.split_request(data))
        timeout_s = request.parameters.timeout_s
        assert timeout_s is None or timeout_s > 0
        tensors = [tensor for tensor in request.inputs if isinstance(tensor, TensorView)]
        await check_request(wanted, tensors, [output.name for output in request.outputs])
    except InvalidArgument:
        return
    # What passes is what numpy can read, as the executor will.
    (tensor,) = tensors
    array = to_array(
        functions.Tensor(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape, data=bytes(tensor.data))
    )
    assert array.shape == tensor.shape


def sent(request: Request, raw: list[memoryview]) -> TensorView:
    """The one tensor of a request that sends its bytes."""
    (tensor,) = protocol.read_inputs(request, raw)
    assert isinstance(tensor, TensorView)
    return tensor


TYPED: dict[str, tuple[str, list[Any], Any]] = {
    "BOOL": ("bool_contents", [True, False], np.bool_),
    "INT8": ("int_contents", [-128, 127], np.int8),
    "INT16": ("int_contents", [-(2**15), 2**15 - 1], np.int16),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1], np.int32),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1], np.int64),
    "UINT8": ("uint_contents", [0, 255], np.uint8),
    "UINT16": ("uint_contents", [0, 2**16 - 1], np.uint16),
    "UINT32": ("uint_contents", [0, 2**32 - 1], np.uint32),
    "UINT64": ("uint64_contents", [0, 2**64 - 1], np.uint64),
    "FP32": ("fp32_contents", [1.5, float("inf")], np.float32),
    "FP64": ("fp64_contents", [1e300, -0.0], np.float64),
}


def typed(datatype: str, field: str, values: list[Any]) -> Request:
    tensor = Request.InferInputTensor(
        name="x", datatype=datatype, shape=[len(values)], contents=inference.InferTensorContents(**{field: values})
    )
    return Request(model_name="f", inputs=[tensor])


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents_become_the_bytes_that_numpy_makes(datatype: str) -> None:
    field, values, dtype = TYPED[datatype]
    tensor = sent(typed(datatype, field, values), [])
    assert bytes(tensor.data) == np.array(values, dtype).tobytes()


def test_typed_bytes_get_their_lengths() -> None:
    tensor = sent(typed("BYTES", "bytes_contents", [b"ab", b""]), [])
    assert tensor.data == b"\x02\x00\x00\x00ab\x00\x00\x00\x00"


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("INT8", 128), ("INT8", -129), ("INT16", 2**15), ("UINT8", 256), ("UINT16", 2**16)],
)
def test_typed_values_out_of_range_are_refused(datatype: str, value: int) -> None:
    field = TYPED[datatype][0]
    with pytest.raises(InvalidArgument, match=datatype) as caught:
        protocol.read_inputs(typed(datatype, field, [value]), [])
    assert caught.value.metadata["tensor"] == "x"


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_are_raw_only(datatype: str) -> None:
    with pytest.raises(InvalidArgument, match="raw_input_contents"):
        protocol.read_inputs(typed(datatype, "fp32_contents", [1.0]), [])
    request = Request(inputs=[Request.InferInputTensor(name="x", datatype=datatype, shape=[1])])
    tensor = sent(request, [memoryview(b"\x00\x3c")])
    assert bytes(tensor.data) == b"\x00\x3c"


def test_an_empty_contents_message_beside_raw_contents_says_nothing() -> None:
    request = Request(
        inputs=[
            Request.InferInputTensor(name="x", datatype="UINT8", shape=[1], contents=inference.InferTensorContents())
        ]
    )
    assert bytes(sent(request, [memoryview(b"7")]).data) == b"7"


@pytest.mark.parametrize(
    ("parameter", "seconds"),
    [
        (inference.InferParameter(int64_param=1_500_000), 1.5),
        (inference.InferParameter(uint64_param=20), 0.00002),
        (inference.InferParameter(int64_param=0), None),
    ],
)
def test_timeouts_are_microseconds(parameter: inference.InferParameter, seconds: float | None) -> None:
    read = protocol.read_request(Request(parameters={"timeout": parameter}), [])
    assert read.parameters.timeout_s == seconds
    assert protocol.read_request(Request(), []).parameters.timeout_s is None


def test_a_reserved_parameter_that_means_none_is_accepted() -> None:
    none = {
        "sequence_id": inference.InferParameter(int64_param=0),
        "priority": inference.InferParameter(uint64_param=0),
    }
    assert protocol.read_request(Request(parameters=none), []).parameters.options is None


@given(st.lists(st.binary(max_size=40), max_size=4), st.text(max_size=5), st.sampled_from(["", "0" * 32]))
def test_answers_are_what_a_generated_client_reads(data: list[bytes], request_id: str, trace_id: str) -> None:
    outputs = [TensorView(f"y{i}", "UINT8", (len(d),), memoryview(d)) for i, d in enumerate(data)]
    answer = Answer(version(), outputs, functions.Timings(), "r", "n0", "gpu0")
    parts = protocol.write_response(Reply(answer, outputs, {}), request_id, trace_id)
    response = inference.ModelInferResponse.FromString(b"".join(parts))
    assert (response.model_name, response.model_version, response.id) == ("f", "1", request_id)
    assert [(o.name, list(o.shape)) for o in response.outputs] == [(o.name, list(o.shape)) for o in outputs]
    assert list(response.raw_output_contents) == data
    assert ("rouse_trace_id" in response.parameters) == bool(trace_id)


async def test_large_bytes_tensors_are_checked_too() -> None:
    element = struct.pack("<I", 4) + b"abcd"
    good = TensorView("x", "BYTES", (5000,), element * 5000)
    await check_request(version("BYTES"), [good], [])
    bad = TensorView("x", "BYTES", (5000,), element * 4999 + element[:-1])
    with pytest.raises(InvalidArgument, match="runs past the end") as caught:
        await check_request(version("BYTES"), [bad], [])
    assert caught.value.reason == "BAD_TENSOR"
