"""A batchable function on a whole mesh: callers at the same time share executions, and each gets its own rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function

pytestmark = pytest.mark.timeout(300)

# Twice the input, and how many rows it was executed with; it takes a while, so that others queue meanwhile.
DOUBLE = """
    import time

    import numpy as np

    class Function:
        def load(self, context):
            pass

        def predict(self, inputs):
            x = inputs["x"]
            time.sleep(0.02)
            if (x < 0).any():
                raise ValueError("negative")
            return {"y": x * 2, "rows": np.full(len(x), len(x), np.int32)}
"""
CALLERS = 16
ROUNDS = 8


def test_callers_share_executions_and_a_bad_one_fails_alone(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    folder = write_function(
        tmp_path / "double",
        "double",
        DOUBLE,
        [("x", "FP32", [-1, 2])],
        [("y", "FP32", [-1, 2]), ("rows", "INT32", [-1])],
        "[batching]\nmax_batch_size = 16\n",
    )
    client.deploy(folder)
    alone = client.infer("double", {"x": np.ones((1, 2), np.float32)}, timeout=60)
    assert alone["rows"].tolist() == [1]

    def call(caller: int) -> list[int]:
        """What the executions of one caller's requests had as rows; every other request of caller 0 is bad."""
        shared = []
        for turn in range(ROUNDS):
            rows = caller % 3 + 1
            x = np.full((rows, 2), caller * 100 + turn, np.float32)
            if caller == 0 and turn % 2:
                with pytest.raises(rouse.RouseError, match="negative"):
                    client.infer("double", {"x": x - 1000}, timeout=60)
                continue
            answer = client.infer("double", {"x": x}, timeout=60)
            np.testing.assert_array_equal(answer["y"], x * 2)
            assert answer["rows"].shape == (rows,)
            shared.append(int(answer["rows"][0]))
        return shared

    with ThreadPoolExecutor(CALLERS) as callers:
        shared = [rows for each in callers.map(call, range(CALLERS)) for rows in each]
    assert max(shared) > 3, shared
    assert max(shared) <= 16
    with pytest.raises(rouse.InvalidArgument):
        client.infer("double", {"x": np.ones((17, 2), np.float32)}, timeout=60)
    client.delete("double")
