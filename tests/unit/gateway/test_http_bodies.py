"""Bodies of REST v2: headers and blobs, compression, timeouts, paths; whatever is sent is read or refused."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common.errors import InvalidArgument, NotFound, ResourceExhausted, RouseError, Unimplemented
from rouse_gateway.http import compression, infer
from rouse_gateway.http.messages import Reply, Request
from rouse_gateway.http.router import Route, Router
from rouse_gateway.http.timeouts import header_timeout
from rouse_gateway.wire import TensorView

GOOD = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}
LIMIT = 1 << 20
# What may become of a body that is anything.
READ = ("", "MALFORMED_REQUEST", "BAD_CONTENTS", "BAD_PARAMETER", "BAD_TIMEOUT", "BAD_SHARED_MEMORY")


def body(*inputs: Any, **fields: Any) -> bytes:
    return json.dumps({"inputs": list(inputs)} | fields).encode()


def reason(action: Callable[[], object]) -> str:
    """Why it was refused; empty where it was not."""
    try:
        action()
    except RouseError as error:
        return error.reason
    return ""


# ---- JSON and blobs -----------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.booleans())
def test_blobs_are_taken_in_order_without_copies(blobs: list[bytes], binary: bool) -> None:
    entries = [
        {"name": f"x{n}", "datatype": "UINT8", "shape": [len(blob)], "parameters": {"binary_data_size": len(blob)}}
        for n, blob in enumerate(blobs)
    ]
    head = body(*entries, parameters={"binary_data_output": binary})
    whole = head + b"".join(blobs)
    found, form = infer.read("m", "", whole, str(len(head)))
    tensors = [tensor for tensor in found.inputs if isinstance(tensor, TensorView)]
    assert [bytes(tensor.data) for tensor in tensors] == blobs
    assert all(isinstance(tensor.data, memoryview) and tensor.data.obj is whole for tensor in tensors)
    assert form.binary is binary


@given(st.binary(max_size=200), st.none() | st.text(max_size=24) | st.integers(-2, 300).map(str))
def test_any_bytes_are_read_or_refused(content: bytes, length: str | None) -> None:
    assert reason(lambda: infer.read("m", "", content, length)) in READ


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["name", "datatype", "shape", "data", "parameters"])
BROKEN = st.dictionaries(FIELDS, JSON, max_size=5).map(lambda changes: GOOD | changes)


@given(st.lists(BROKEN | JSON, max_size=3), st.dictionaries(st.sampled_from(["id", "parameters", "outputs"]), JSON))
def test_any_json_is_read_or_refused(entries: list[Any], fields: dict[str, Any]) -> None:
    content = json.dumps({"inputs": entries} | fields).encode()
    assert reason(lambda: infer.read("m", "", content, None)) in READ


BINARY = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}


@pytest.mark.parametrize(
    ("content", "length", "said"),
    [
        (b"", None, "no JSON"),
        (b"[]", None, "no JSON object"),
        (b"{", None, "no JSON"),
        (b"\xff\xfe{}", None, "no JSON"),
        (b"[" * 100_000, None, "nested"),
        (b'{"id":' + b"9" * 5000 + b"}", None, "no JSON"),
        (b'{"id": "\\ud800"}', None, "surrogate"),
        (b"{}", None, "inputs"),
        (body("x"), None, "object with a name"),
        (body({"name": 1}), None, "object with a name"),
        (body(GOOD | {"datatype": 1}), None, "datatype"),
        (body(GOOD | {"shape": 1}), None, "shape"),
        (body(GOOD | {"shape": [1.5]}), None, "shape"),
        (body(GOOD | {"shape": [True]}), None, "shape"),
        (body({"name": "x", "datatype": "FP32", "shape": [2]}), None, "no data"),
        (body(GOOD | {"parameters": {"binary_data_size": 8}}), None, "beside"),
        (body(GOOD | {"parameters": []}), None, "parameters"),
        (body(GOOD, outputs={}), None, "outputs"),
        (body(GOOD, outputs=[{"name": "y", "parameters": {"binary_data": 1}}]), None, "binary_data"),
        (body(GOOD, parameters={"binary_data_output": "yes"}), None, "binary_data_output"),
        (body(GOOD, id=7), None, "id"),
        (body(BINARY), None, "0 are left"),
        (body(BINARY | {"parameters": {"binary_data_size": -1}}), None, "number of bytes"),
        (body(BINARY | {"parameters": {"binary_data_size": True}}), None, "number of bytes"),
        (body(GOOD), "1000000", "Inference-Header-Content-Length"),
        (body(GOOD), "-1", "Inference-Header-Content-Length"),
        (body(GOOD), "1e2", "Inference-Header-Content-Length"),
        (body(GOOD), "٣", "Inference-Header-Content-Length"),
        (body(GOOD) + b"xy", str(len(body(GOOD))), "2 bytes of binary data"),
    ],
)
def test_what_is_wrong_is_named(content: bytes, length: str | None, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        infer.read("m", "", content, length)


# ---- Compression --------------------------------------------------------------------------------------


def raw_deflate(content: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(content) + stream.flush()


@given(st.binary(max_size=5000), st.sampled_from(["gzip", "deflate"]))
def test_what_is_deflated_is_inflated_again(content: bytes, encoding: str) -> None:
    assert compression.inflate(compression.deflate(content, encoding), encoding, LIMIT) == content


def test_every_form_that_clients_send_is_inflated() -> None:
    text = b"abc" * 1000
    assert compression.inflate(gzip.compress(text), "gzip", LIMIT) == text
    assert compression.inflate(gzip.compress(text) + gzip.compress(b"more"), "GZIP ", LIMIT) == text + b"more"
    assert compression.inflate(zlib.compress(text), "deflate", LIMIT) == text
    assert compression.inflate(raw_deflate(text), "deflate", LIMIT) == text
    assert compression.inflate(text, "identity", LIMIT) == text


@pytest.mark.parametrize("packed", [gzip.compress, zlib.compress, raw_deflate])
def test_a_bomb_is_refused_at_its_bound(packed: Any) -> None:
    encoding = "gzip" if packed is gzip.compress else "deflate"
    assert len(compression.inflate(packed(bytes(LIMIT)), encoding, LIMIT)) == LIMIT
    with pytest.raises(ResourceExhausted) as caught:
        compression.inflate(packed(bytes(LIMIT + 1)), encoding, LIMIT)
    assert caught.value.reason == "BODY_TOO_LARGE"


@given(st.binary(max_size=100), st.sampled_from(["gzip", "deflate"]))
def test_bytes_that_are_not_compressed_are_refused(content: bytes, encoding: str) -> None:
    assert reason(lambda: compression.inflate(content, encoding, LIMIT)) in ("", "BAD_ENCODING")


@pytest.mark.parametrize(
    "content", [gzip.compress(b"x")[:-3], gzip.compress(b"x") + b"rest", gzip.compress(b"") * 3, b""]
)
def test_broken_streams_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        compression.inflate(content, "gzip", LIMIT)
    assert caught.value.reason == "BAD_ENCODING"


def test_an_encoding_that_is_not_served_is_named() -> None:
    with pytest.raises(Unimplemented, match="br"):
        compression.inflate(b"x", "br", LIMIT)


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate, gzip", "gzip"),
        ("gzip;q=0.2, deflate;q=0.8", "deflate"),
        ("gzip;q=0", ""),
        ("br, *", ""),
        ("", ""),
        ("gzip;q=much", ""),
    ],
)
def test_the_answer_s_encoding_is_what_is_accepted(header: str, encoding: str) -> None:
    assert compression.accepted({b"accept-encoding": header.encode()}) == encoding


# ---- Timeouts -----------------------------------------------------------------------------------------


def timeout(**headers: str) -> float:
    names = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return header_timeout(Request("POST", "/", {}, names, b""))


def test_timeouts_have_units_and_the_shortest_holds() -> None:
    assert timeout() == math.inf
    assert timeout(x_request_timeout="1.5") == 1.5
    assert timeout(x_request_timeout="200ms") == pytest.approx(0.2)
    assert timeout(x_request_timeout="500us") == pytest.approx(0.0005)
    assert timeout(grpc_timeout="2S") == 2
    assert timeout(grpc_timeout="100m", x_request_timeout="5s") == pytest.approx(0.1)


@pytest.mark.parametrize("value", ["", "-1", "1h", "soon", "1e3", "nan", "٣", "9" * 40])
def test_a_bad_timeout_is_named(value: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        timeout(x_request_timeout=value)
    assert caught.value.reason == "BAD_TIMEOUT"


# ---- Paths --------------------------------------------------------------------------------------------


async def nothing(request: Request) -> Reply:
    return Reply([b""])


@pytest.fixture
def router() -> Router:
    router = Router()
    for template in ("/v2", "/v2/models/stats", "/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        router.add(Route("GET", template, nothing))
    router.add(Route("POST", "/v2/models/{model}/infer", nothing))
    return router


def test_a_word_beats_a_name(router: Router) -> None:
    assert router.find("GET", "/v2/models/stats")[0].template == "/v2/models/stats"
    found, values = router.find("GET", "/v2/models/f/versions/3")
    assert (found.template, values) == ("/v2/models/{model}/versions/{version}", {"model": "f", "version": "3"})
    assert router.find("HEAD", "/v2")[0].method == "GET"


@given(st.text(max_size=60), st.sampled_from(["GET", "POST", "PUT", "X"]))
def test_any_path_is_found_or_refused(path: str, method: str) -> None:
    router = Router()
    router.add(Route("GET", "/v2/models/{model}", nothing))
    assert reason(lambda: router.find(method, f"/{path}")) in ("", "NO_SUCH_PATH", "METHOD_NOT_ALLOWED")


def test_a_wrong_method_is_told_the_right_ones(router: Router) -> None:
    with pytest.raises(Unimplemented) as caught:
        router.find("PUT", "/v2/models/f/infer")
    assert caught.value.metadata["allowed"] == "POST"
    with pytest.raises(NotFound):
        router.find("POST", "/v2/models/f/versions")
