"""Anything at all, sent to the HTTP port of a running mesh: a typed error soon, and nothing is left behind."""

from __future__ import annotations

import gzip
import json
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rouse_testkit.http import request_bytes
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function, write_identity
from rouse_testkit.resources import check_flat, held

# What the document names, less 500: nothing of this is the mesh's own fault.
DOCUMENTED = {200, 400, 401, 403, 404, 405, 408, 409, 413, 415, 429, 431, 501, 503, 504}
REASON = re.compile("[A-Z][A-Z0-9_]+")
ANSWERED_S = 20.0
EXAMPLES = settings(max_examples=150, suppress_health_check=list(HealthCheck))

ECHO = """
    class Function:
        def load(self, context):
            pass

        def predict(self, inputs):
            return {"y": inputs["x"]}
"""


class Port:
    """The HTTP port under test."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._at = (host, int(port))

    def send(self, sent: bytes, *, half_close: bool = True) -> list[tuple[int, bytes]]:
        """Sends bytes on a connection of their own; the answers that come until the server closes it."""
        with socket.create_connection(self._at, timeout=ANSWERED_S) as connection:
            try:
                connection.sendall(sent)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
                found = read_all(connection)
            except (ConnectionResetError, BrokenPipeError):  # it had heard enough
                return []
        return parse_answers(found)

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One request whole, and its one answer, checked."""
        sent = request_bytes(method, path, body, {"connection": "close"} | dict(headers or {}))
        answers = self.send(sent, half_close=False)
        assert len(answers) == 1, (sent, answers)
        check(*answers[0])
        return answers[0]


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def parse_answers(found: bytes) -> list[tuple[int, bytes]]:
    """Status and body of each answer."""
    answers = []
    while found:
        head, _, rest = found.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if status == 100:
            size = 0
        elif length is None:  # chunks to the end
            size = len(rest)
        else:
            size = int(length[1])
        if status != 100:
            answers.append((status, rest[:size]))
        found = rest[size:]
    return answers


def check(status: int, body: bytes) -> None:
    """An answer is one of those that the document names, and an error says what it is."""
    assert status in DOCUMENTED, (status, body)
    if status != 200 and body:
        document = json.loads(body)
        assert REASON.fullmatch(document["reason"]), document
        assert document["error"], document


@pytest.fixture(scope="module")
def port(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    client = mesh.client()
    client.deploy(write_identity(tmp_path_factory.mktemp("f")))
    texts = [("x", "BYTES", [-1])], [("y", "BYTES", [-1])]
    client.deploy(write_function(tmp_path_factory.mktemp("f"), "texts", ECHO, *texts))
    port = Port(mesh.http_address)
    good = json.dumps({"inputs": [GOOD]}).encode()
    for _ in range(50):  # what is made once is made now
        assert port.ask("POST", "/v2/models/identity/infer", good)[0] == 200
        port.ask("POST", "/v2/models/texts/infer", gzip.compress(bytes(100_000)), {"content-encoding": "gzip"})
    before = held(mesh.services["gateway"])
    yield port
    assert mesh.services["gateway"] == before.pid, "the gateway died"
    check_flat(mesh, before)
    assert port.ask("POST", "/v2/models/identity/infer", good)[0] == 200


GOOD = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.5, -2.0]}
NAMES = st.sampled_from(["identity", "texts", "nobody", "", "ü€😀", "a/b", "..", "%00", "x" * 300]) | st.text(
    max_size=8
)
SIZES = st.sampled_from([-1, 0, 1, 2, 3, 2**31, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]) | st.integers(-3, 4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
DATATYPES = st.sampled_from(["FP32", "BYTES", "FP16", "BF16", "BOOL", "INT8", "UINT64", "FP64", "fp32", "", "FP7"])
PARAMETERS = st.dictionaries(
    st.sampled_from(
        [
            "binary_data_size",
            "binary_data",
            "binary_data_output",
            "timeout",
            "priority",
            "sequence_id",
            "sequence_start",
            "sequence_end",
            "classification",
            "shared_memory_region",
            "shared_memory_offset",
            "shared_memory_byte_size",
            "idempotency_key",
            "triton_x",
            "own",
        ]
    ),
    JSON | SIZES,
    max_size=3,
)
TENSORS = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES | JSON,
        "datatype": DATATYPES | JSON,
        "shape": st.lists(SIZES, max_size=4) | JSON,
        "data": st.lists(st.sampled_from([1, -1, 0.5, 1e300, "NaN", "text", None, True, [1], "\ud800"])) | JSON,
        "parameters": PARAMETERS | JSON,
    },
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text(max_size=4) | JSON,
        "inputs": st.lists(TENSORS | TENSORS.map(lambda changes: GOOD | changes), max_size=3) | JSON,
        "outputs": st.lists(TENSORS, max_size=2) | JSON,
        "parameters": PARAMETERS | JSON,
    },
)


@EXAMPLES
@given(BODIES, st.sampled_from(["identity", "texts"]))
def test_bodies_of_inferences(port: Port, body: dict[str, Any], model: str) -> None:
    port.ask("POST", f"/v2/models/{model}/infer", json.dumps(body).encode())


@EXAMPLES
@given(TENSORS, st.sampled_from(["identity", "texts"]), st.booleans())
def test_tensors_that_are_nearly_right(port: Port, changes: dict[str, Any], model: str, stream: bool) -> None:
    port.ask("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [GOOD | changes]}).encode())
    path = "generate_stream" if stream else "generate"
    port.ask("POST", f"/v2/models/{model}/{path}", json.dumps({"x": changes.get("data")} | changes).encode())


@EXAMPLES
@given(st.binary(max_size=24), st.integers(-2, 2), st.integers(-2, 2), SIZES, DATATYPES)
def test_binary_data_off_by_some(port: Port, blob: bytes, by: int, header_by: int, size: int, datatype: str) -> None:
    for said in (len(blob) + by, size):
        entry = {"name": "x", "datatype": datatype, "shape": [len(blob) // 4], "parameters": {"binary_data_size": said}}
        head = json.dumps({"inputs": [entry]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head) + header_by)}
        port.ask("POST", "/v2/models/identity/infer", head + blob, headers)


ENDPOINTS = st.sampled_from(
    [
        "GET /v2/models/{}", "GET /v2/models/{}/ready", "GET /v2/models/{}/config", "GET /v2/models/{}/stats",
        "GET /v2/models/{}/versions/{}", "GET /v2/models/{}/versions/{}/ready", "POST /v2/models/{}/infer",
        "POST /v2/models/{}/versions/{}/infer", "POST /v2/models/{}/generate", "POST /v2/models/{}/generate_stream",
        "POST /v2/repository/index", "POST /v2/repository/models/{}/load", "GET /v2/systemsharedmemory/status",
        "GET /v2/systemsharedmemory/region/{}/status", "POST /v2/systemsharedmemory/region/{}/register",
        "POST /v2/systemsharedmemory/region/{}/unregister", "POST /v2/cudasharedmemory/region/{}/register",
        "GET /v2/cudasharedmemory/region/{}/status", "POST /v2/models/{}/trace/setting", "POST /v2/trace/setting",
        "PUT /v2/models/{}", "DELETE /v2/{}", "PATCH /{}", "OPTIONS /v2/models/{}/infer", "GET /{}/{}",
    ]
)  # fmt: skip


@EXAMPLES
@given(
    ENDPOINTS, NAMES, NAMES | SIZES.map(str), BODIES | JSON | st.fixed_dictionaries({"key": NAMES, "byte_size": SIZES})
)
def test_every_endpoint_with_any_names_and_bodies(port: Port, endpoint: str, name: str, other: str, body: Any) -> None:
    method, _, path = endpoint.partition(" ")
    named = path.format(*(quote(text.encode("utf-8", "surrogatepass"), safe="") for text in (name, other)))
    port.ask(method, named, json.dumps(body).encode())


HEADER_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "accept-encoding",
            "content-encoding",
            "inference-header-content-length",
            "x-request-timeout",
            "grpc-timeout",
            "idempotency-key",
            "traceparent",
            "authorization",
            "content-type",
            "expect",
            "accept",
        ]
    ),
    HEADER_TEXT | st.sampled_from(["gzip", "deflate", "0", "-1", "1ms", "1n", "100-continue", "00-0-0-0", "x" * 5000]),
    max_size=4,
)


@EXAMPLES
@given(HEADERS, st.sampled_from([b"", json.dumps({"inputs": [GOOD]}).encode(), gzip.compress(b"{}"), b"\x1f\x8b"]))
def test_any_headers(port: Port, headers: dict[str, str], body: bytes) -> None:
    port.ask("POST", "/v2/models/identity/infer", body, headers)


WHOLE = request_bytes("POST", "/v2/models/identity/infer", json.dumps({"inputs": [GOOD]}).encode())


@EXAMPLES
@given(st.binary(min_size=1, max_size=64) | st.integers(1, len(WHOLE) - 1), st.data())
def test_any_bytes_and_requests_cut_or_changed_anywhere(port: Port, sent: bytes | int, data: st.DataObject) -> None:
    if isinstance(sent, int):
        at = data.draw(st.integers(0, len(WHOLE) - 1))
        changed = bytearray(WHOLE)
        changed[at] ^= data.draw(st.integers(1, 255))
        for each in (WHOLE[:sent], bytes(changed), WHOLE[:sent] + WHOLE):
            for answer in port.send(each):
                check(*answer)
    else:
        for answer in port.send(sent):
            check(*answer)


def test_one_who_sends_slowly_is_told_so(port: Port) -> None:
    """Several at once, and all of them are gone within the time that headers have."""
    with socket.create_connection(port._at, timeout=ANSWERED_S + 10) as connection:
        connection.sendall(WHOLE[:20])
        assert [(status, json.loads(body)["reason"]) for status, body in parse_answers(read_all(connection))] == [
            (408, "SLOW_REQUEST")
        ]


def test_bombs_and_oversized_bodies(port: Port) -> None:
    bomb = gzip.compress(bytes(200 << 20))
    status, body = port.ask("POST", "/v2/models/identity/infer", bomb, {"content-encoding": "gzip"})
    assert (status, json.loads(body)["reason"]) == (413, "BODY_TOO_LARGE")
    headers = {"content-length": str(1 << 40), "expect": "100-continue"}
    status, body = port.ask("POST", "/v2/models/identity/infer", b"", headers)
    assert (status, json.loads(body)["reason"]) == (413, "BODY_TOO_LARGE")
