"""A stateful function with two instances: each sequence stays with one, and knows when that one is gone."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function

pytestmark = pytest.mark.timeout(300)

# The sum of what a sequence has sent so far, and the process that answered.
ADDING = """
    import os

    import numpy as np

    class Function:
        def load(self, context):
            self.sums = {}

        def predict(self, inputs, request):
            sequence = request.sequence
            if sequence.start:
                self.sums[sequence.id] = 0.0
            self.sums[sequence.id] += float(inputs["x"][0])
            return {"y": np.array([self.sums[sequence.id]], np.float32), "pid": np.array([os.getpid()], np.int64)}
"""


def add(
    client: rouse.Client, sequence: str, value: float, *, start: bool = False, end: bool = False
) -> tuple[float, int]:
    x = np.array([value], np.float32)
    done = client.infer("adding", {"x": x}, sequence_id=sequence, sequence_start=start, sequence_end=end)
    return float(done["y"][0]), int(done["pid"][0])


def reason(client: rouse.Client, sequence: str) -> str:
    with pytest.raises(rouse.RouseError) as refused:
        add(client, sequence, 1.0)
    return refused.value.reason


def test_a_sequence_stays_with_its_instance(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    folder = write_function(
        tmp_path / "adding",
        "adding",
        ADDING,
        [("x", "FP32", [1])],
        [("y", "FP32", [1]), ("pid", "INT64", [1])],
        "[scaling]\nmin_instances = 2\nmax_instances = 2\n",
    )
    client.deploy(folder)
    mesh.wait_until(lambda: client.describe("adding").function.ready_instances == 2, "both instances are ready")

    def run(number: int) -> set[int]:
        name, pids = f"s{number}", set()
        for turn in range(6):
            total, pid = add(client, name, number + 1.0, start=turn == 0, end=turn == 5)
            assert total == (number + 1.0) * (turn + 1)
            pids.add(pid)
        return pids

    with ThreadPoolExecutor(8) as callers:
        assert all(len(pids) == 1 for pids in callers.map(run, range(8)))
    assert reason(client, "s0") == "SEQUENCE_NOT_STARTED"

    _, pid = add(client, "lost", 1.0, start=True)
    os.kill(pid, signal.SIGKILL)
    # One request may have been with it, or on its way to it.
    mesh.wait_until(lambda: reason(client, "lost") == "SEQUENCE_LOST", "the sequence knows that it is lost")
    assert add(client, "lost", 5.0, start=True)[0] == 5.0
    client.delete("adding")
