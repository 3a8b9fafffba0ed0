"""A stateful function with two instances: each sequence stays with one, and knows when that one is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from rouse_contracts import functions as pb
from rouse_contracts.arrays import from_batch, to_batch
from rouse_contracts.status import decode_details
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


@pytest.fixture
def stub(mesh: Mesh) -> Iterator[pb.FunctionServiceStub]:
    with grpc.insecure_channel(mesh.gateway_address) as channel:
        yield pb.FunctionServiceStub(channel)


def add(stub: pb.FunctionServiceStub, sequence: str, value: float, **place: bool) -> tuple[float, int]:
    request = pb.InferRequest(
        function="adding",
        inputs=to_batch({"x": np.array([value], np.float32)}).tensors,
        options=pb.RequestOptions(sequence=pb.Sequence(id=sequence, **place)),
    )
    outputs = from_batch(pb.TensorBatch(tensors=stub.Infer(request, timeout=60).outputs))
    return float(outputs["y"][0]), int(outputs["pid"][0])


def reason(stub: pb.FunctionServiceStub, sequence: str) -> str:
    with pytest.raises(grpc.RpcError) as refused:
        add(stub, sequence, 1.0)
    return decode_details(refused.value).reason


def test_a_sequence_stays_with_its_instance(mesh: Mesh, stub: pb.FunctionServiceStub, tmp_path: Path) -> None:
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
            total, pid = add(stub, name, number + 1.0, start=turn == 0, end=turn == 5)
            assert total == (number + 1.0) * (turn + 1)
            pids.add(pid)
        return pids

    with ThreadPoolExecutor(8) as callers:
        assert all(len(pids) == 1 for pids in callers.map(run, range(8)))
    assert reason(stub, "s0") == "SEQUENCE_NOT_STARTED"

    _, pid = add(stub, "lost", 1.0, start=True)
    os.kill(pid, signal.SIGKILL)
    # One request may have been with it, or on its way to it.
    mesh.wait_until(lambda: reason(stub, "lost") == "SEQUENCE_LOST", "the sequence knows that it is lost")
    assert add(stub, "lost", 5.0, start=True)[0] == 5.0
    client.delete("adding")
