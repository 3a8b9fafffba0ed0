"""Anything at all, sent to the gRPC port of a running mesh: a typed error soon, and nothing is left behind."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rouse_contracts import functions, inference
from rouse_contracts.status import decode_details
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function, write_identity
from rouse_testkit.resources import check_flat, held

Code = grpc.StatusCode
# None of these is the mesh's own fault, nor says that it did not answer.
ALLOWED = {
    Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.FAILED_PRECONDITION, Code.UNIMPLEMENTED,
    Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE, Code.PERMISSION_DENIED, Code.UNAUTHENTICATED,
}  # fmt: skip
ANSWERED_S = 20.0
EXAMPLES = settings(max_examples=150, suppress_health_check=list(HealthCheck))
ECHO = """
    class Function:
        def load(self, context):
            pass

        def predict(self, inputs):
            return {"y": inputs["x"]}
"""

# These take their message as it came, and answer what is none by themselves.
RAW = (
    "/inference.GRPCInferenceService/ModelInfer",
    "/rouse.functions.v1.FunctionService/Infer",
)
UNARY = [
    f"/{service.full_name}/{method.name}"
    for contract in (inference.DESCRIPTOR, functions.DESCRIPTOR)
    for service in contract.services_by_name.values()
    for method in service.methods
    if not method.client_streaming and not method.server_streaming
]
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
GOOD = inference.ModelInferRequest(
    model_name="identity",
    inputs=[inference.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[2])],
    raw_input_contents=[struct.pack("<2f", 1.5, -2.0)],
)


class Port:
    """The gRPC port under test, without any contract at this end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address)

    def call(self, method: str, message: bytes, metadata: Any = ()) -> tuple[grpc.StatusCode, str]:
        """Status and reason of a unary call."""
        try:
            self.channel.unary_unary(method)(message, timeout=ANSWERED_S, metadata=metadata)
        except grpc.RpcError as error:
            return error.code(), decode_details(error).reason
        return Code.OK, ""

    def stream(self, messages: list[bytes]) -> tuple[grpc.StatusCode, int]:
        """Status of a stream of requests, and how many responses came."""
        responses = 0
        try:
            for _ in self.channel.stream_stream(STREAM)(iter(messages), timeout=ANSWERED_S):
                responses += 1
        except grpc.RpcError as error:
            return error.code(), responses
        return Code.OK, responses


def check(method: str, outcome: tuple[grpc.StatusCode, str]) -> None:
    """An answer, or a typed error that says why there is none."""
    code, reason = outcome
    assert code in ALLOWED, (method, outcome)
    assert code is Code.OK or reason != code.name, (method, outcome)


@pytest.fixture(scope="module")
def port(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    client = mesh.client()
    client.deploy(write_identity(tmp_path_factory.mktemp("f")))
    texts = [("x", "BYTES", [-1])], [("y", "BYTES", [-1])]
    client.deploy(write_function(tmp_path_factory.mktemp("f"), "texts", ECHO, *texts))
    port = Port(mesh.gateway_address)
    for _ in range(50):  # what is made once is made now
        assert port.call(RAW[0], GOOD.SerializeToString()) == (Code.OK, "")
        assert port.stream([GOOD.SerializeToString()]) == (Code.OK, 1)
    before = held(mesh.services["gateway"])
    yield port
    assert mesh.services["gateway"] == before.pid, "the gateway died"
    assert port.call(RAW[0], GOOD.SerializeToString()) == (Code.OK, "")
    port.channel.close()
    check_flat(mesh, before)


SIZES = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 2**31, 2**62, 2**63 - 1]) | st.integers(-3, 4)
NAMES = st.sampled_from(["x", "y", "identity", "texts", "nobody", "", "ü€😀", "a/b", "x" * 300])
DATATYPES = st.sampled_from(["FP32", "BYTES", "FP16", "BOOL", "INT8", "UINT64", "fp32", "", "FP7"])
PARAMETERS = st.dictionaries(
    st.sampled_from(
        [
            "timeout", "priority", "sequence_id", "sequence_start", "sequence_end", "classification",
            "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size", "idempotency_key", "own",
        ]
    ),
    st.builds(inference.InferParameter, bool_param=st.booleans())
    | st.builds(inference.InferParameter, int64_param=SIZES)
    | st.builds(inference.InferParameter, string_param=NAMES)
    | st.builds(inference.InferParameter, double_param=st.floats())
    | st.builds(inference.InferParameter, uint64_param=st.integers(0, 2**64 - 1))
    | st.builds(inference.InferParameter),
    max_size=3,
)  # fmt: skip
CONTENTS = st.none() | st.builds(
    inference.InferTensorContents,
    int_contents=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
    fp32_contents=st.lists(st.floats(width=32), max_size=3),
    bytes_contents=st.lists(st.binary(max_size=3), max_size=3),
    bool_contents=st.lists(st.booleans(), max_size=3),
)
INPUTS = st.builds(
    inference.ModelInferRequest.InferInputTensor,
    name=NAMES, datatype=DATATYPES, shape=st.lists(SIZES, max_size=4), contents=CONTENTS, parameters=PARAMETERS,
)  # fmt: skip
REQUESTS = st.builds(
    inference.ModelInferRequest,
    model_name=NAMES,
    model_version=st.sampled_from(["", "1", "9", "latest", "-1"]),
    id=NAMES,
    parameters=PARAMETERS,
    inputs=st.lists(INPUTS, max_size=3),
    outputs=st.lists(
        st.builds(inference.ModelInferRequest.InferRequestedOutputTensor, name=NAMES, parameters=PARAMETERS), max_size=2
    ),
    raw_input_contents=st.lists(st.binary(max_size=12), max_size=3),
)
# A request that would be right, but for its one input.
NEARLY = st.builds(
    inference.ModelInferRequest,
    model_name=st.sampled_from(["identity", "texts"]),
    parameters=PARAMETERS,
    inputs=st.lists(
        st.builds(
            inference.ModelInferRequest.InferInputTensor,
            name=st.just("x"), datatype=DATATYPES, shape=st.lists(SIZES, min_size=1, max_size=1), contents=CONTENTS,
        ),
        min_size=1,
        max_size=1,
    ),
    raw_input_contents=st.lists(st.binary(max_size=12), max_size=1),
)  # fmt: skip


@EXAMPLES
@given(REQUESTS | NEARLY)
def test_requests_of_the_inference_protocol(port: Port, request_: inference.ModelInferRequest) -> None:
    check(RAW[0], port.call(RAW[0], request_.SerializeToString()))


@EXAMPLES
@given(st.lists(NEARLY | REQUESTS, max_size=4))
def test_a_stream_answers_every_request_and_stays_open(port: Port, requests: list[inference.ModelInferRequest]) -> None:
    code, responses = port.stream([request.SerializeToString() for request in requests])
    assert (code, responses) == (Code.OK, len(requests))


@EXAMPLES
@given(NAMES, st.sampled_from(["", "1", "x"]), st.lists(st.tuples(NAMES, DATATYPES, SIZES, st.binary(max_size=9))))
def test_requests_of_functions(
    port: Port, function: str, version: str, tensors: list[tuple[str, str, int, bytes]]
) -> None:
    inputs = [functions.Tensor(name=n, datatype=d, shape=[size], data=data) for n, d, size, data in tensors]
    request = functions.InferRequest(function=function, version=version, inputs=inputs)
    check(RAW[1], port.call(RAW[1], request.SerializeToString()))


@EXAMPLES
@given(st.sampled_from(UNARY), st.binary(max_size=40))
def test_any_bytes_to_any_method(port: Port, method: str, message: bytes) -> None:
    check(method, port.call(method, message))


@EXAMPLES
@given(st.integers(0, len(GOOD.SerializeToString()) - 1), st.integers(0, 255), st.booleans())
def test_messages_cut_or_changed_anywhere(port: Port, at: int, value: int, cut: bool) -> None:
    message = bytearray(GOOD.SerializeToString())
    if cut:
        del message[at:]
    else:
        message[at] = value
    check(RAW[0], port.call(RAW[0], bytes(message)))
    code, _ = port.stream([bytes(message), GOOD.SerializeToString()])
    assert code in ALLOWED


@settings(EXAMPLES, max_examples=40)
@given(
    st.sampled_from(["/", "/a", "/inference.GRPCInferenceService/Nothing", "/x/y/z", RAW[0]]),
    st.lists(st.tuples(st.sampled_from(["idempotency-key", "traceparent", "x-bin"]), st.text("abc-019", max_size=9))),
)
def test_methods_that_are_not_there_and_any_metadata(port: Port, method: str, metadata: list[tuple[str, str]]) -> None:
    sent = [(name, value.encode() if name.endswith("-bin") else value) for name, value in metadata]
    code, _ = port.call(method, GOOD.SerializeToString(), sent)
    assert code is (Code.OK if method == RAW[0] else Code.UNIMPLEMENTED)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@settings(EXAMPLES, max_examples=60)
@given(st.binary(max_size=64), st.booleans(), st.integers(0, 0xFF))
def test_any_bytes_on_the_connection_itself(port: Port, sent: bytes, preface: bool, kind: int) -> None:
    """No HTTP/2, frames of any kind, half-closed connections: the server closes them, and serves others."""
    host, _, number = port.address.rpartition(":")
    frame = len(sent).to_bytes(3, "big") + bytes([kind]) + b"\x00\x00\x00\x00\x01" + sent
    with socket.create_connection((host, int(number)), timeout=ANSWERED_S) as connection:
        try:
            connection.sendall(PREFACE + frame if preface else sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                continue
        except ConnectionResetError:
            return


def test_a_message_that_is_too_large_is_refused(port: Port) -> None:
    code, _ = port.call(RAW[0], bytes(65 << 20))
    assert code is Code.RESOURCE_EXHAUSTED
