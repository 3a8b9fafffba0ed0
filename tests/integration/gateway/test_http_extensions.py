"""The extensions over REST v2: generate, configuration, repository, shared memory, settings."""

from __future__ import annotations

import asyncio
import os
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rouse_common.errors import ResourceExhausted
from rouse_contracts import functions, node
from rouse_testkit.front import Front, eventually
from rouse_testkit.http import ask, connected

TEXTS = functions.Signature(
    inputs=[functions.TensorSpec(name="x", datatype="BYTES", shape=[-1, 1])],
    outputs=[functions.TensorSpec(name="y", datatype="BYTES", shape=[-1, 1])],
)


def given(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.5, -2.0]} | changes


@pytest.fixture
async def served(front: Front) -> Front:
    front.control.add_function("f", nodes=["n0"])
    front.control.add_function("texts", TEXTS, nodes=["n0"])
    front.control.add_function("sleeps")
    await front.publish()
    return front


# ---- Generate -----------------------------------------------------------------------------------------


async def test_generate_takes_and_gives_plain_values(served: Front) -> None:
    asked = {"x": "höllo", "id": "7", "temperature": 0.5, "parameters": {"best": True, "priority": 2}}
    answer = await ask(served.http, "POST", "/v2/models/texts/generate", asked)
    assert answer.json == {"model_name": "texts", "model_version": "1", "id": "7", "y": "höllo"}
    options = served.node.requests[-1].options
    assert options.parameters["temperature"].double_value == 0.5
    assert options.parameters["best"].bool_value is True
    assert options.priority == 2
    answer = await ask(served.http, "POST", "/v2/models/f/versions/1/generate", {"x": [1.5, "NaN"]})
    assert answer.json["y"] == [1.5, "NaN"]
    assert (await ask(served.http, "POST", "/v2/models/f/generate", {"x": 3})).json["y"] == 3.0


async def test_generate_stream_sends_events(served: Front) -> None:
    answer = await ask(served.http, "POST", "/v2/models/f/generate_stream", {"x": [1.5]})
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.body == b'data: {"model_name":"f","model_version":"1","y":1.5}\n\n'


async def test_a_stream_that_fails_before_it_begins_has_a_status(served: Front) -> None:
    async def full(request: node.InferRequest) -> node.InferResponse:
        raise ResourceExhausted("QUEUE_FULL", "no room", retry_after_s=2)

    served.node.behaviour = full
    answer = await ask(served.http, "POST", "/v2/models/f/generate_stream", {"x": [1.5]})
    assert (answer.status, answer.json["reason"], answer.headers["retry-after"]) == (429, "QUEUE_FULL", "2")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, "MISSING_INPUT"),
        ({"x": "text"}, "BAD_CONTENTS"),
        ({"x": {"a": 1}}, "BAD_CONTENTS"),
        ({"x": [[1.0]]}, "BAD_TENSOR"),
        ({"x": [1.0], "more": {"a": 1}}, "BAD_PARAMETER"),
        ({"x": [1.0], "more": 1 << 70}, "BAD_PARAMETER"),
        ({"x": [1.0], "timeout": "soon"}, "BAD_TIMEOUT"),
        ([], "MALFORMED_REQUEST"),
    ],
)
async def test_generate_refuses_what_does_not_fit(served: Front, asked: Any, reason: str) -> None:
    for path in ("generate", "generate_stream"):
        answer = await ask(served.http, "POST", f"/v2/models/f/{path}", asked)
        assert (answer.status, answer.json["reason"]) == (400, reason)


# ---- What a model is, and the repository --------------------------------------------------------------


async def test_the_configuration_is_as_triton_writes_it(served: Front) -> None:
    config = (await ask(served.http, "GET", "/v2/models/f/config")).json
    assert (config["name"], config["max_batch_size"]) == ("f", 0)
    assert [(t["name"], t["data_type"], t["dims"]) for t in config["input"]] == [("x", "TYPE_FP32", [-1])]
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert (await ask(served.http, "GET", "/v2/models/nobody/config")).status == 404


async def test_models_are_listed_loaded_and_unloaded(served: Front) -> None:
    rows = (await ask(served.http, "POST", "/v2/repository/index")).json
    assert [(row["name"], row["version"], row["state"]) for row in rows] == [
        ("f", "1", "READY"),
        ("sleeps", "1", "UNAVAILABLE"),
        ("texts", "1", "READY"),
    ]
    answer = await ask(served.http, "POST", "/v2/repository/models/sleeps/load", {})
    assert (answer.status, answer.body) == (200, b"")
    ready = (await ask(served.http, "POST", "/v2/repository/index", {"ready": True})).json
    assert [row["name"] for row in ready] == ["f", "sleeps", "texts"]
    refused = await ask(served.http, "POST", "/v2/repository/models/f/load", {"parameters": {"config": "{}"}})
    assert (refused.status, refused.json["reason"]) == (501, "UNSUPPORTED_PARAMETER")
    assert (await ask(served.http, "POST", "/v2/repository/models/nobody/load")).status == 404
    assert (await ask(served.http, "POST", "/v2/repository/index", {"ready": 1})).status == 400


# ---- Shared memory ------------------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[Path]:
    """64 bytes of shared memory, the first of which are two floats."""
    path = Path("/dev/shm") / f"rouse-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    path.write_bytes(struct.pack("<2f", 1.5, -2.0) + bytes(56))
    yield path
    path.unlink()


async def test_tensors_are_handed_over_in_shared_memory(served: Front, memory: Path) -> None:
    at = "/v2/systemsharedmemory"
    region = {"key": f"/{memory.name}", "offset": 0, "byte_size": 64}
    assert (await ask(served.http, "POST", f"{at}/region/r/register", region)).status == 200
    rows = (await ask(served.http, "GET", f"{at}/status")).json
    assert rows == (await ask(served.http, "GET", f"{at}/region/r/status")).json
    assert (rows[0]["name"], rows[0]["byte_size"]) == ("r", 64)
    placed = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    entry = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": placed}
    there = placed | {"shared_memory_offset": 32}
    asked = {"inputs": [entry], "outputs": [{"name": "y", "parameters": there}]}
    answer = await ask(served.http, "POST", "/v2/models/f/infer", asked)
    assert answer.json["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2], "parameters": there}]
    written = await asyncio.to_thread(memory.read_bytes)
    assert written[32:40] == written[:8]
    assert (await ask(served.http, "POST", f"{at}/region/r/unregister")).status == 200
    assert (await ask(served.http, "GET", f"{at}/status")).json == []
    assert (await ask(served.http, "POST", f"{at}/unregister")).status == 200


@pytest.mark.parametrize("region", [{}, {"key": "/nobody", "byte_size": 4}, {"key": "/x", "byte_size": "4"}, []])
async def test_memory_that_is_not_there_is_refused(served: Front, region: Any) -> None:
    answer = await ask(served.http, "POST", "/v2/systemsharedmemory/region/r/register", region)
    assert answer.status in (400, 404)
    assert (await ask(served.http, "GET", "/v2/systemsharedmemory/region/r/status")).status == 404


async def test_memory_of_gpus_is_not_served(served: Front) -> None:
    assert (await ask(served.http, "GET", "/v2/cudasharedmemory/status")).json == []
    for path in ("region/r/register", "region/r/unregister", "unregister"):
        answer = await ask(served.http, "POST", f"/v2/cudasharedmemory/{path}", {})
        assert (answer.status, answer.json["reason"]) == (501, "NOT_SERVED")


# ---- Settings -----------------------------------------------------------------------------------------


async def test_settings_of_traces_and_logs_are_read_and_changed(served: Front) -> None:
    before = (await ask(served.http, "GET", "/v2/trace/setting")).json
    assert (before["trace_level"], before["trace_rate"]) == (["TIMESTAMPS"], "1")
    changed = await ask(served.http, "POST", "/v2/trace/setting", {"trace_rate": "7", "trace_level": ["OFF"]})
    assert (changed.json["trace_level"], changed.json["trace_rate"]) == (["OFF"], "7")
    assert (await ask(served.http, "GET", "/v2/models/f/trace/setting")).json == changed.json
    back = await ask(served.http, "POST", "/v2/trace/setting", {"trace_rate": None, "trace_level": None})
    assert back.json == before
    refused: list[dict[str, Any]] = [{"trace_rate": {}}, {"trace_rate": "0"}, {"nothing": "1"}]
    for bad in refused:
        assert (await ask(served.http, "POST", "/v2/trace/setting", bad)).json["reason"] == "BAD_SETTING"
    logs = (await ask(served.http, "GET", "/v2/logging")).json
    assert (await ask(served.http, "POST", "/v2/logging", {"log_verbose_level": 0})).json == logs
    assert (await ask(served.http, "POST", "/v2/logging", {"log_info": [1]})).json["reason"] == "BAD_SETTING"


async def test_a_key_makes_a_retry_the_same_request(served: Front) -> None:
    headers = {"idempotency-key": "k" * 257}
    answer = await ask(served.http, "POST", "/v2/models/f/infer", {"inputs": [given()]}, headers)
    assert (answer.status, answer.json["reason"]) == (400, "BAD_PARAMETER")


async def test_a_client_that_leaves_a_stream_cancels_it(served: Front) -> None:
    async def hang(request: node.InferRequest) -> node.InferResponse:
        await asyncio.Event().wait()
        raise AssertionError

    served.node.behaviour = hang
    served.node.arrived.clear()
    async with connected(served.http) as connection:
        asked = asyncio.create_task(connection.request("POST", "/v2/models/f/generate_stream", {"x": [1.0]}))
        async with asyncio.timeout(10):
            await served.node.arrived.wait()
        asked.cancel()
    await eventually(lambda: served.node.cancelled == 1, "the node is told")
