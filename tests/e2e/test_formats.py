"""What is deployed as it is: programs of torch.export and models of Triton's repositories, through a whole mesh."""

from __future__ import annotations

import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import rouse
from rouse_testkit import models
from rouse_testkit.mesh import Mesh
from rouse_testkit.source import ROOT

pytestmark = pytest.mark.timeout(300)


def test_an_exported_program(mesh: Mesh, tmp_path: Path) -> None:
    program = models.write_exported_mlp(tmp_path / "exported-mlp")
    (tmp_path / "exported-mlp" / "export.py").write_text("raise SystemExit('this is never run')")
    client = mesh.client()
    done = client.deploy(tmp_path / "exported-mlp")
    assert (done.state, done.version.format) == ("READY", "TORCH_EXPORT")
    assert done.version.weights_bytes > 0
    assert [(t.name, t.datatype, t.shape) for t in done.version.inputs] == [("input", "FP32", (-1, 16))]
    x = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)
    with torch.inference_mode():
        want = program.module()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(client.infer("exported-mlp", {"input": x})["output"], want, rtol=1e-5, atol=1e-6)
    with pytest.raises(rouse.InvalidArgument):
        client.infer("exported-mlp", {"input": np.zeros((65, 16), np.float32)})
    client.delete("exported-mlp")


def test_the_exported_example(mesh: Mesh, tmp_path: Path) -> None:
    """As its README says, but for the folder and the address; concurrent requests go together, each gets its own."""
    example = runpy.run_path(str(ROOT / "examples" / "exported_mlp" / "build.py"))
    client = mesh.client()
    done = client.deploy(example["build"](tmp_path / "model"))
    assert (done.function, done.version.format, done.version.batching) == (
        "exported_mlp", "TORCH_EXPORT", rouse.Batching(32, 0)
    )  # fmt: skip
    assert [(t.name, t.shape) for t in done.version.outputs] == [("logits", (-1, 10)), ("digit", (-1,))]
    torch.manual_seed(example["SEED"])
    module = example["Mlp"]().eval()
    images = np.random.default_rng(0).random((24, 28, 28), np.float32)

    def call(start: int) -> rouse.Result:
        return client.infer("exported_mlp", {"image": images[start : start + 2]})

    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(call, range(0, len(images), 2)))
    with torch.inference_mode():
        want = {name: value.numpy() for name, value in module(torch.from_numpy(images)).items()}
    for position, answer in enumerate(answers):
        part = slice(2 * position, 2 * position + 2)
        np.testing.assert_allclose(answer["logits"], want["logits"][part], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(answer["digit"], want["digit"][part])
    with pytest.raises(rouse.InvalidArgument):
        client.infer("exported_mlp", {"image": np.zeros((example["MAX_BATCH"] + 1, 28, 28), np.float32)})
    client.delete("exported_mlp")


CONFIG = """
max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 100 }
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }]
"""
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array * 2)]) for array in arrays]
"""


def test_a_model_of_a_triton_repository(mesh: Mesh, tmp_path: Path) -> None:
    (tmp_path / "doubling" / "1").mkdir(parents=True)
    (tmp_path / "doubling" / "1" / "model.py").write_text(MODEL)
    (tmp_path / "doubling" / "config.pbtxt").write_text(CONFIG)
    client = mesh.client()
    done = client.deploy(tmp_path / "doubling")
    assert (done.state, done.version.batching) == ("READY", rouse.Batching(4, 100))
    x = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(client.infer("doubling", {"IN": x})["OUT"], x * 2)
    client.delete("doubling")
