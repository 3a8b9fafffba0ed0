"""A node whose devices are of the kind `cuda`, in a whole mesh: on a stand-in, whose memory no process may touch.

It shows what gpu-server and executors do with such devices, and nothing of a GPU.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import rouse
from rouse_testkit.compute import stand_in_executor
from rouse_testkit.fetching import Unobtainable
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import linear_weight, write_linear

# Its program is built first, which takes minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SIZE = 1024  # 4 MiB of weights
NAMES = ("one", "two", "three", "four", "five")
KEPT = 2


@pytest.fixture(scope="module")
def accelerated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One node with two devices of 9 MiB: each holds two of the models."""
    try:
        program = stand_in_executor()
    except Unobtainable as error:
        pytest.skip(str(error))
    mesh = Mesh(
        tmp_path_factory.mktemp("accelerated"),
        devices=("cuda:gpu0=9MiB", "cuda:gpu1=9MiB"),
        executors=True,
        settings={"gpu-server": {"executor_program": str(program), "executors_kept": str(KEPT)}},
    )
    mesh.start()
    yield mesh
    mesh.stop()


def deploy(client: rouse.Client, folder: Path, name: str, seed: int, extra: str = 'execution = "rouse"') -> None:
    write_linear(folder, name, SIZE, seed)
    manifest = folder / "rouse.toml"
    manifest.write_text(f"{extra}\n{manifest.read_text()}")
    client.deploy(folder)


def executors(mesh: Mesh) -> set[int]:
    """Process ids of the executors that live."""
    children = psutil.Process(mesh.services["gpu-server@node0"]).children(recursive=True)
    return {child.pid for child in children if child.name() == "rouse-executor"}


def test_more_models_than_fit_are_answered_by_executors_of_their_own(accelerated: Mesh, tmp_path: Path) -> None:
    client, x = accelerated.client(), np.random.default_rng(1).random((2, SIZE), dtype=np.float32)
    want = {name: x @ linear_weight(SIZE, seed).numpy().T for seed, name in enumerate(NAMES)}
    for seed, name in enumerate(NAMES):
        deploy(client, tmp_path / name, name, seed)

    def all_answer() -> None:
        for name in NAMES:
            found = client.infer(name, {"x": x}, timeout=60)["y"]
            np.testing.assert_allclose(found, want[name], rtol=1e-4, atol=1e-3)

    for _ in range(3):
        all_answer()
    # What was used is told a moment after its request.
    accelerated.wait_until(
        lambda: sum(client.describe(name).usage.swap_ins for name in NAMES) > len(NAMES), "some were swapped in again"
    )
    # Two models on each device, and what each keeps beside them.
    assert 4 <= len(executors(accelerated)) <= 2 * (2 + KEPT)
    for pid in executors(accelerated):
        os.kill(pid, signal.SIGKILL)
    accelerated.wait_until(lambda: answered(client, "one", x), "its function answers again")
    all_answer()
    for name in NAMES:
        client.delete(name)
    accelerated.wait_until(lambda: not executors(accelerated), "executors are gone with their functions")


def answered(client: rouse.Client, name: str, x: np.ndarray) -> bool:
    try:
        return "y" in client.infer(name, {"x": x}, timeout=60)
    except rouse.Unavailable:
        return False


def test_plain_execution_is_refused_when_it_is_deployed(accelerated: Mesh, tmp_path: Path) -> None:
    with pytest.raises(rouse.RouseError) as caught:
        deploy(accelerated.client(), tmp_path / "plain", "plain", 0, "")
    assert "are CUDA, where only native executors compute" in str(caught.value)
