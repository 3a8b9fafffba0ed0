"""A caller that gives up stops its request where it runs: the instance lives on and is free for the next one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function

pytestmark = pytest.mark.timeout(300)

ENDLESS = """
    import torch
    class Function:
        def predict(self, inputs):
            matrix = torch.eye(32)
            while inputs["x"][0] > 0:
                matrix = torch.relu(matrix @ matrix)
            return {"y": inputs["x"]}
"""


def test_a_request_past_its_deadline_gives_the_instance_back(mesh: Mesh, tmp_path: Path) -> None:
    tensors = [("x", "FP32", [-1])], [("y", "FP32", [-1])]
    client = mesh.client()
    client.deploy(write_function(tmp_path / "endless", "endless", ENDLESS, *tensors))
    (pid,) = mesh.instance_pids("endless")
    for _ in range(3):
        with pytest.raises(rouse.DeadlineExceeded):
            client.infer("endless", {"x": np.ones(1, np.float32)}, timeout=1)
        answer = client.infer("endless", {"x": np.zeros(1, np.float32)}, timeout=30)
        assert answer["y"].tolist() == [0]
    assert mesh.instance_pids("endless") == [pid]
    client.delete("endless")
