"""What is deployed without a line of code: programs of torch.export through a whole mesh."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import rouse
from rouse_testkit import models
from rouse_testkit.mesh import Mesh

pytestmark = pytest.mark.timeout(300)


def test_an_exported_program(mesh: Mesh, tmp_path: Path) -> None:
    program = models.write_exported_mlp(tmp_path / "exported-mlp")
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
