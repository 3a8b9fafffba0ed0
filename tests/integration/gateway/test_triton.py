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
        front.control.add_function(name, nodes=["n0"])
    front.control.add_function("texts", signature("BYTES", [-1]), nodes=["n0"])
    front.control.add_function("halves", signature("FP16", [1, 1]), nodes=["n0"])
    front.control.add_function("sleeps")
    await front.publish()
    got = await run_client(front.address)

    for what in ("live", "ready", "model ready", "version ready"):
        assert got[what] is True, what
    for what in ("version not ready", "unknown not ready"):
        assert got[what] is False, what
    assert got["server"]["name"] == "rouse"
    assert "extensions" not in got["server"], "none that has a name is served"
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
    check_refusals(got)


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
    for what, instead in {
        "classification": "largest",
        "sequence": "sequence_id",
        "priority": "deadline",
        "config": "ModelMetadata",
        "statistics": "GetFunction",
        "index": "ListFunctions",
        "load": "first request",
        "unload": "DeleteFunction",
        "shared memory": "raw_input_contents",
        "cuda shared memory": "raw_input_contents",
        "trace settings": "GetTrace",
        "log settings": "LOG_LEVEL",
    }.items():
        check(what, "UNIMPLEMENTED", instead)
