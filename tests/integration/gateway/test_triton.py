"""The public client of the inference protocol, in a process of its own, against the gateway."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from rouse_contracts import functions, node
from rouse_testkit.front import Front

CLIENT = Path(__file__).with_name("client_triton.py")


def signature(datatype: str, shape: list[int]) -> functions.Signature:
    return functions.Signature(
        inputs=[functions.TensorSpec(name="x", datatype=datatype, shape=shape)],
        outputs=[functions.TensorSpec(name="y", datatype=datatype, shape=shape)],
    )


async def run_client(address: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CLIENT), address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    result: dict[str, Any] = json.loads(out)
    return result


async def test_the_public_client_gets_what_the_protocol_promises(front: Front) -> None:
    echo = front.node.behaviour

    async def behave(request: node.InferRequest) -> node.InferResponse:
        if request.function == "hangs":
            await asyncio.Event().wait()
        return await echo(request)

    front.node.behaviour = behave
    for name in ("f", "hangs"):
        front.control.add_function(name, nodes=["n0"], options={"labels.y": "cat, dog"})
    front.node.queues = [
        node.QueueSummary(
            function="f",
            version_id="f-1",
            statistics=node.InferenceStatistics(
                inference_count=7, execution_count=3, queue=node.Tally(count=4, nanos=50), last_inference_ms=9,
                batches=[node.BatchTally(batch_size=2, compute_infer=node.Tally(count=3, nanos=30))],
            ),
        )
    ]  # fmt: skip
    front.control.add_function("texts", signature("BYTES", [-1]), nodes=["n0"])
    front.control.add_function(
        "halves",
        signature("FP16", [-1, 1]),
        nodes=["n0"],
        batching=functions.Batching(max_batch_size=8, max_delay_us=100),
    )
    front.control.add_function("sleeps")
    await front.publish()
    got = await run_client(front.address)

    for what in ("live", "ready", "model ready", "version ready"):
        assert got[what] is True, what
    for what in ("version not ready", "unknown not ready"):
        assert got[what] is False, what
    assert got["server"]["name"] == "rouse"
    assert {"statistics", "system_shared_memory", "model_repository", "trace"} < set(got["server"]["extensions"])
    tensor = {"name": "x", "datatype": "FP32", "shape": ["-1"]}
    assert got["metadata"] == {
        "name": "f",
        "versions": ["1"],
        "platform": "rouse_python",
        "inputs": [tensor],
        "outputs": [tensor | {"name": "y"}],
    }
    plain = {"y": [1.5, -2.0], "dtype": "float32", "id": "", "version": "1", "trace": 32}
    assert got["infer"] == plain | {"id": "seven"}
    for what in ("infer version", "infer asked", "infer sleeping", "after all that"):
        assert got[what] == plain, what
    assert got["infer bytes"]["y"] == ["a", "", "ü"]
    assert (got["infer half"]["y"], got["infer half"]["dtype"]) == ([[0.5]], "float16")
    assert got["infer empty"]["y"] == []
    for what in ("sequence", "priority", "parameters"):
        assert got[what] == plain, what
    assert got["classification"] == ["1.500000:0:cat", "-2.000000:1:dog"]
    check_descriptions(got)
    check_refusals(got)


def check_descriptions(got: dict[str, Any]) -> None:
    """What the clients read of models, figures and settings."""
    config = got["config"]
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["-1"]}]
    assert "max_batch_size" not in config, "zero: the function is not batchable"
    batched = got["batched config"]
    assert (batched["max_batch_size"], batched["output"][0]["dims"]) == (8, ["1"])
    assert batched["dynamic_batching"]["max_queue_delay_microseconds"] == "100"
    (row,) = got["statistics"]
    assert (row["name"], row["version"], row["inference_count"], row["execution_count"]) == ("f", "1", "7", "3")
    assert row["inference_stats"]["queue"] == {"count": "4", "ns": "50"}
    assert row["batch_stats"][0]["batch_size"] == "2"
    names = ["f", "halves", "hangs", "sleeps", "texts"]
    assert got["all statistics"] == names
    assert got["index"] == dict.fromkeys(names, "READY")
    assert (got["index after"]["f"], got["index again"]["f"]) == ("UNAVAILABLE", "READY")
    assert got["shared memory status"] == got["cuda status"] == {}
    traces = {name: setting["value"] for name, setting in got["trace settings"].items()}
    assert (traces["trace_level"], traces["trace_rate"], traces["trace_count"]) == (["TIMESTAMPS"], ["1"], ["-1"])
    assert got["trace off"]["trace_level"]["value"] == ["OFF"]
    assert got["trace default"] == got["trace settings"]
    assert got["log verbose"]["log_verbose_level"] == {"uint32_param": 1}
    assert got["log quiet again"] == got["log settings"]


def check_refusals(got: dict[str, Any]) -> None:
    """Every refusal has the protocol's code, and words that help."""

    def check(what: str, status: str, *words: str) -> None:
        assert got[what]["status"] == f"StatusCode.{status}", (what, got[what])
        for word in words:
            assert word in got[what]["message"], (what, got[what])

    unknown = "Request for unknown model: 'nobody' is not found"
    for what in ("unknown model", "unknown metadata"):
        assert got[what] == {"status": "StatusCode.NOT_FOUND", "message": unknown}
    check("unknown version", "NOT_FOUND", "'f'", "9")
    check("bad version", "INVALID_ARGUMENT", "latest", "digits")
    check("unknown input", "INVALID_ARGUMENT", "'z'", "'x'", "'f'")
    check("no input", "INVALID_ARGUMENT", "'x'", "'f'")
    check("input twice", "INVALID_ARGUMENT", "'x'", "twice")
    check("wrong datatype", "INVALID_ARGUMENT", "INT32", "FP32")
    check("wrong rank", "INVALID_ARGUMENT", "[1, 2]", "[-1]")
    check("unknown output", "INVALID_ARGUMENT", "'w'", "'y'")
    check("timeout", "DEADLINE_EXCEEDED", "hangs", "n0")
    for what in ("unknown config", "unknown statistics", "load unknown", "unload unknown"):
        check(what, "NOT_FOUND", "'nobody'")
    check("load with a config", "UNIMPLEMENTED", "config", "deploy")
    check("shared memory", "NOT_FOUND", "rouse-no-such-memory")
    check("shared memory path", "INVALID_ARGUMENT", "key")
    for what in ("cuda register", "cuda unregister"):
        check(what, "UNIMPLEMENTED", "raw_input_contents")
    check("trace file", "UNIMPLEMENTED", "otlp_endpoint")
    check("trace of a model", "UNIMPLEMENTED", "'f'")
    check("bad trace", "INVALID_ARGUMENT", "trace_rate", "often")
    check("log file", "UNIMPLEMENTED", "log_file")
