"""Several nodes and devices on one machine: instances spread, a dead node's functions go on elsewhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_identity, write_linear

pytestmark = pytest.mark.timeout(300)
SIZE = 1024  # 4 MiB of weights


@pytest.fixture(scope="module")
def wide_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two nodes with two devices each, gpu0 and gpu1 of 6 MiB: room for one model of SIZE each."""
    mesh = Mesh(
        tmp_path_factory.mktemp("wide"), nodes=2, devices=("host:gpu0=6MiB", "host:gpu1=6MiB"),
        settings={"scaler": {"ahead_share": "0.01"}},
    )  # fmt: skip
    mesh.start()
    yield mesh
    mesh.stop()


def test_functions_use_every_node_and_device(wide_mesh: Mesh, tmp_path: Path) -> None:
    client = wide_mesh.client()
    names = [f"lin{number}" for number in range(4)]
    for seed, name in enumerate(names):
        client.deploy(write_linear(tmp_path / name, name, SIZE, seed))
    x = np.ones((1, SIZE), np.float32)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda name: client.infer(name, {"x": x}, timeout=60), names * 5))
    assert {result.node for result in results} == {"node0", "node1"}
    assert len({(result.node, result.device) for result in results}) > 2
    for name in names:
        client.delete(name)


def test_a_busy_function_s_weights_come_to_the_other_node_ahead_of_an_instance(wide_mesh: Mesh, tmp_path: Path) -> None:
    client = wide_mesh.client()
    client.deploy(write_linear(tmp_path / "busy", "busy", SIZE, 7))
    x = np.ones((1, SIZE), np.float32)

    def held() -> set[str]:
        """Nodes that hold its weights, while more requests come: more than a hundredth of a node's devices."""
        for _ in range(20):
            client.infer("busy", {"x": x}, timeout=60)
        return {r.node for r in client.describe("busy").residency if r.state in ("HOST", "DEVICE", "EXECUTING")}

    wide_mesh.wait_until(lambda: held() == {"node0", "node1"}, "both nodes hold its weights")
    assert len({i.node for i in client.describe("busy").instances}) == 1
    client.delete("busy")


def test_a_lost_node_s_function_is_woken_on_the_other(wide_mesh: Mesh, tmp_path: Path) -> None:
    client = wide_mesh.client()
    x = np.arange(3, dtype=np.float32)
    client.deploy(write_identity(tmp_path / "f", "moving"))
    first = client.infer("moving", {"x": x}).node
    frozen = [pid for name, pid in wide_mesh.services.items() if name.endswith(f"@{first}")]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        wide_mesh.wait_until(
            lambda: next(n for n in client.status().nodes if n.node == first).state == "LOST", f"{first} is lost"
        )
        moved = client.infer("moving", {"x": x}, timeout=60)
        np.testing.assert_array_equal(moved["y"], x)
        assert moved.node != first
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    wide_mesh.wait_ready()
    wide_mesh.wait_until(lambda: all(n.state == "READY" for n in client.status().nodes), "the node is back")
    np.testing.assert_array_equal(client.infer("moving", {"x": x}, timeout=60)["y"], x)
    client.delete("moving")


def test_small_requests_pass_while_large_ones_are_under_way(mesh: Mesh, tmp_path: Path) -> None:
    """On the way through the mesh large tensors have connections of their own."""
    client = mesh.client()
    for name in ("large", "small"):
        client.deploy(write_identity(tmp_path / name, name))
        client.infer(name, {"x": np.ones(4, np.float32)}, timeout=60)
    large = {"x": np.arange(12 << 20, dtype=np.float32)}
    with ThreadPoolExecutor(2) as pool:
        under_way = [pool.submit(mesh.client().infer, "large", large, timeout=120) for _ in range(2)]
        passed = 0
        while not all(call.done() for call in under_way):
            client.infer("small", {"x": np.ones(4, np.float32)}, timeout=60)
            passed += 1
        for call in under_way:
            np.testing.assert_array_equal(call.result()["y"], large["x"])
    assert passed > 0
    for name in ("large", "small"):
        client.delete(name)
