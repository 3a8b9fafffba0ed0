"""REST v2 of a gateway over real HTTP: what is asked for is answered, in the form that was asked for."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
import zlib
from typing import Any

import pytest

from rouse_common.errors import ResourceExhausted
from rouse_contracts import node
from rouse_testkit.front import Front, eventually
from rouse_testkit.http import HttpAnswer, ask, connected

FLOATS = struct.pack("<2f", 1.5, -2.0)


def given(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.5, -2.0]} | changes


def binary(document: dict[str, Any], *blobs: bytes) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(document).encode()
    return head + b"".join(blobs), {"Inference-Header-Content-Length": str(len(head))}


def split(answer: HttpAnswer) -> tuple[Any, bytes]:
    length = int(answer.headers["inference-header-content-length"])
    return json.loads(answer.body[:length]), answer.body[length:]


@pytest.fixture
async def served(front: Front) -> Front:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    return front


async def test_health_and_metadata(served: Front) -> None:
    assert (await ask(served.http, "GET", "/v2/health/live")).json == {"live": True}
    assert (await ask(served.http, "GET", "/v2/health/ready")).json == {"ready": True}
    server = (await ask(served.http, "GET", "/v2")).json
    assert server["name"] == "rouse"
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1]}
    metadata = {
        "name": "f", "versions": ["1"], "platform": "rouse_python", "inputs": [tensor],
        "outputs": [tensor | {"name": "y"}],
    }  # fmt: skip
    for path in ("/v2/models/f", "/v2/models/f/versions/1"):
        assert (await ask(served.http, "GET", path)).json == metadata
        assert (await ask(served.http, "GET", f"{path}/ready")).json == {"name": "f", "ready": True}
    unknown = await ask(served.http, "GET", "/v2/models/nobody")
    assert unknown.status == 404
    assert unknown.json["error"] == "Request for unknown model: 'nobody' is not found"
    assert unknown.json["reason"] == "FUNCTION_NOT_FOUND"
    assert (await ask(served.http, "GET", "/v2/models/f/versions/9/ready")).status == 404


async def test_json_in_and_out(served: Front) -> None:
    answer = await ask(served.http, "POST", "/v2/models/f/infer", {"id": "seven", "inputs": [given()]})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    trace = answer.headers["rouse-trace-id"]
    assert len(trace) == 32
    assert answer.json == {
        "model_name": "f", "model_version": "1", "id": "seven", "parameters": {"rouse_trace_id": trace},
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1.5, -2.0]}],
    }  # fmt: skip


async def test_binary_in_and_out(served: Front) -> None:
    entry = given(parameters={"binary_data_size": 8})
    del entry["data"]
    body, headers = binary({"inputs": [entry], "parameters": {"binary_data_output": True}}, FLOATS)
    answer = await ask(served.http, "POST", "/v2/models/f/versions/1/infer", body, headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    head, blob = split(answer)
    assert blob == FLOATS
    assert head["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]
    # What is asked for one output beats what is asked for all.
    body, headers = binary(
        {
            "inputs": [entry],
            "parameters": {"binary_data_output": True},
            "outputs": [{"name": "y", "parameters": {"binary_data": False}}],
        },
        FLOATS,
    )
    plain = await ask(served.http, "POST", "/v2/models/f/infer", body, headers)
    assert plain.json["outputs"][0]["data"] == [1.5, -2.0]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_in_and_out(served: Front, encoding: str) -> None:
    values = [float(n) for n in range(2000)]
    body = json.dumps({"inputs": [given(shape=[2000], data=values)]}).encode()
    packed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    headers = {"content-encoding": encoding, "accept-encoding": encoding}
    answer = await ask(served.http, "POST", "/v2/models/f/infer", packed, headers)
    assert answer.headers["content-encoding"] == encoding
    text = gzip.decompress(answer.body) if encoding == "gzip" else zlib.decompress(answer.body)
    assert json.loads(text)["outputs"][0]["data"] == values


async def test_a_caller_s_trace_is_continued(served: Front) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    answer = await ask(served.http, "POST", "/v2/models/f/infer", {"inputs": [given()]}, headers)
    assert answer.headers["rouse-trace-id"] == trace


@pytest.mark.parametrize(
    ("parameters", "headers"),
    [({"timeout": 200_000}, {}), ({}, {"x-request-timeout": "200ms"}), ({}, {"grpc-timeout": "200m"})],
)
async def test_the_shortest_timeout_holds(served: Front, parameters: dict[str, Any], headers: dict[str, str]) -> None:
    async def hang(request: node.InferRequest) -> node.InferResponse:
        await asyncio.Event().wait()
        raise AssertionError

    served.node.behaviour = hang
    body = {"inputs": [given()], "parameters": parameters}
    answer = await ask(served.http, "POST", "/v2/models/f/infer", body, headers)
    assert (answer.status, answer.json["reason"]) == (504, "DEADLINE_EXCEEDED")
    assert served.node.timeouts_s[0] <= 0.2


async def test_a_client_that_leaves_cancels_its_request(served: Front) -> None:
    async def hang(request: node.InferRequest) -> node.InferResponse:
        await asyncio.Event().wait()
        raise AssertionError

    served.node.behaviour = hang
    async with connected(served.http) as connection:
        served.node.arrived.clear()
        asked = asyncio.create_task(connection.request("POST", "/v2/models/f/infer", {"inputs": [given()]}))
        async with asyncio.timeout(10):
            await served.node.arrived.wait()
        asked.cancel()
    await eventually(lambda: served.node.cancelled == 1, "the node is told")


async def test_connections_are_kept_and_requests_may_be_sent_ahead(served: Front) -> None:
    async with connected(served.http) as connection:
        for _ in range(3):
            assert (await connection.request("GET", "/v2/health/live")).status == 200
        connection.writer.write(b"GET /v2 HTTP/1.1\r\nhost: x\r\n\r\n" * 5)
        for _ in range(5):
            assert (await connection.answer()).json["name"] == "rouse"


async def test_paths_and_methods_that_are_not_served(served: Front) -> None:
    for path in ("/", "/v1/models", "/v2/", "/v2/models", "/v2/models/f/infer/more", "/v2/models//infer", "/%00"):
        answer = await ask(served.http, "POST", path, b"{}")
        assert (answer.status, answer.json["reason"]) == (404, "NO_SUCH_PATH"), path
    answer = await ask(served.http, "GET", "/v2/models/f/infer")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    answer = await ask(served.http, "DELETE", "/v2/models/f")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    assert (await ask(served.http, "HEAD", "/v2/models/f")).status == 200


async def test_an_answer_to_a_refused_request_says_when_to_retry(served: Front) -> None:
    async def full(request: node.InferRequest) -> node.InferResponse:
        raise ResourceExhausted("QUEUE_FULL", "no room", retry_after_s=1.2, node="n0")

    served.node.behaviour = full
    answer = await ask(served.http, "POST", "/v2/models/f/infer", {"inputs": [given()]})
    assert (answer.status, answer.headers["retry-after"]) == (429, "2")
    assert answer.json["reason"] == "QUEUE_FULL"
    assert answer.json["metadata"]["node"] == "n0"
