"""The client, the command line and the examples against a running mesh, as their guides say."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parents[2]


def cli(mesh: Mesh, *arguments: str, code: int = 0) -> str:
    """Runs `rouse` as a user does: it finds the mesh by its data folder."""
    done = subprocess.run(
        [Path(sys.executable).with_name("rouse"), *arguments],
        capture_output=True, text=True, timeout=120, env=environment(mesh),
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def environment(mesh: Mesh) -> dict[str, str]:
    dropped = ("ROUSE_ADDRESS", "ROUSE_DEBUG")
    return {k: v for k, v in os.environ.items() if k not in dropped} | {"ROUSE_DATA_DIR": str(mesh.data_dir)}


def test_text_example_by_command_line(mesh: Mesh) -> None:
    assert "text_stats version 1 is READY" in " ".join(
        cli(mesh, "deploy", str(ROOT / "examples" / "text_stats")).split()
    )
    answer = json.loads(cli(mesh, "infer", "text_stats", "--input", "text=Models sleep until a request", "--json"))
    assert {o["name"]: o["data"] for o in answer["outputs"]} == {
        "words": [5],
        "characters": [28],
        "longest": ["request"],
    }

    spans = json.loads(cli(mesh, "trace", answer["trace_id"], "--json"))["spans"]
    assert {"gateway", "node-router", "executor"} <= {span["service"] for span in spans}
    ids = {span["span_id"] for span in spans}
    assert all(span["parent_span_id"] in ids for span in spans if span["parent_span_id"]), "the trace is whole"

    described = json.loads(cli(mesh, "describe", "text_stats", "--json"))
    assert described["function"]["version"]["options"] == {"encoding": "utf-8"}
    status = json.loads(cli(mesh, "status", "--json"))
    assert {service["state"] for service in status["services"]} == {"SERVING"}
    assert "ready" in cli(mesh, "logs", "text_stats")
    assert json.loads(cli(mesh, "version", "--json"))["mesh"] == rouse.__version__
    cli(mesh, "delete", "text_stats")
    assert "there is no function 'text_stats'" in cli(mesh, "describe", "text_stats", code=4)


def test_digits_example_reads_digits(mesh: Mesh) -> None:
    for script in ("deploy", "call"):
        path = ROOT / "examples" / "digits" / f"{script}.py"
        done = subprocess.run(
            [sys.executable, path], capture_output=True, text=True, timeout=200, env=environment(mesh)
        )
        assert done.returncode == 0, done.stderr
    share = float(done.stdout.partition("%")[0])
    assert share > 95


def test_load_errors_show_at_deploy(mesh: Mesh, tmp_path: Path) -> None:
    code = """
        class Function:
            def load(self, context):
                raise ValueError("the seventh layer is missing")

            def predict(self, inputs):
                return inputs
    """
    folder = write_function(tmp_path / "broken", "broken", code, [("x", "FP32", [-1])], [("x", "FP32", [-1])])
    with pytest.raises(rouse.FailedPrecondition, match="the seventh layer is missing") as caught:
        mesh.client().deploy(folder)
    assert caught.value.reason == "LOAD_FAILED"
    assert "the seventh layer is missing" in cli(mesh, "deploy", str(folder), code=1)
    assert "the seventh layer is missing" in cli(mesh, "logs", "broken")


def test_renamed_pickles_are_refused_with_the_advice(mesh: Mesh, tmp_path: Path) -> None:
    import torch

    folder = write_function(
        tmp_path / "sly", "sly", "class Function: ...", [("x", "FP32", [-1])], [("x", "FP32", [-1])]
    )
    torch.save({"w": torch.ones(2)}, folder / "weights.data")
    with pytest.raises(rouse.InvalidArgument) as caught:
        mesh.client().deploy(folder)
    assert caught.value.reason == "PICKLE_REFUSED"
    assert "safetensors" in caught.value.hint


async def test_both_clients_and_tritonclient_in_one_process(mesh: Mesh, tmp_path: Path) -> None:
    import tritonclient.grpc.aio as triton

    code = """
        class Function:
            def load(self, context): ...
            def predict(self, inputs):
                return {"y": inputs["x"] * 2}
    """
    folder = write_function(tmp_path / "twice", "twice", code, [("x", "FP32", [-1])], [("y", "FP32", [-1])])
    x = np.arange(4, dtype=np.float32)
    tensor = triton.InferInput("x", [4], "FP32")
    tensor.set_data_from_numpy(x)
    async with (
        rouse.AsyncClient(mesh.gateway_address) as ours,
        triton.InferenceServerClient(mesh.gateway_address) as it,
    ):
        await ours.deploy(folder)

        def blocking() -> Any:
            return mesh.client().infer("twice", {"x": x.tolist()})["y"]

        answers = await asyncio.gather(
            ours.infer("twice", {"x": x}), it.infer("twice", [tensor]), asyncio.to_thread(blocking)
        )
        found = (answers[0]["y"], answers[1].as_numpy("y"), answers[2])
        trace_id = answers[1].get_response().parameters["rouse_trace_id"].string_param
        assert any(span.service == "executor" for span in await ours.trace(trace_id))
    for answer in found:
        np.testing.assert_array_equal(answer, x * 2)
