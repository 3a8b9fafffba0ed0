"""Processes die while they work: what was accepted is answered, and the mesh is whole again by itself."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function, write_identity

pytestmark = pytest.mark.timeout(300)
X = {"x": np.arange(4, dtype=np.float32)}

SUICIDAL = """
    import os, signal

    class Function:
        def load(self, context):
            self.flag = None

        def predict(self, inputs):
            if inputs["x"][0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return {"y": inputs["x"]}
"""


def test_a_killed_instance_costs_at_most_its_own_request(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    client.deploy(write_function(tmp_path / "f", "suicidal", SUICIDAL, [("x", "FP32", [-1])], [("y", "FP32", [-1])]))
    with pytest.raises(rouse.Unavailable) as caught:
        client.infer("suicidal", {"x": np.full(4, -1, np.float32)}, timeout=30)
    assert caught.value.reason == "EXECUTOR_LOST"
    assert caught.value.metadata["function"] == "suicidal"
    np.testing.assert_array_equal(client.infer("suicidal", X, timeout=30)["y"], X["x"])
    client.delete("suicidal")


def test_kill_9_of_instances_under_load_ends_every_request_once(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    client.deploy(write_identity(tmp_path / "f", "steady"))
    outcomes: list[str] = []
    stop = threading.Event()

    def caller(seed: int) -> None:
        draw = np.random.default_rng(seed)
        while not stop.is_set():
            x = draw.standard_normal(8, dtype=np.float32)
            try:
                np.testing.assert_array_equal(client.infer("steady", {"x": x}, timeout=30)["y"], x)
                outcomes.append("answered")
            except rouse.RouseError as error:
                outcomes.append(error.reason)

    def answers_since(served: int) -> bool:
        return outcomes[served:].count("answered") > 20

    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(caller, seed) for seed in range(4)]
        try:
            for _ in range(3):
                served = len(outcomes)
                mesh.wait_until(partial(answers_since, served), "requests are answered")
                os.kill(mesh.instance_pids("steady")[0], signal.SIGKILL)
            served = len(outcomes)
            mesh.wait_until(partial(answers_since, served), "answers after the last kill")
        finally:
            stop.set()
        for future in callers:
            future.result(timeout=60)
    assert set(outcomes) <= {"answered", "EXECUTOR_LOST"}, set(outcomes)
    assert outcomes.count("EXECUTOR_LOST") <= 3 * 4
    client.delete("steady")


@pytest.mark.parametrize(
    "service",
    [
        "gateway",
        "cluster-manager",
        "model-repository",
        "scaler",
        "comm-broker",
        "node-router@node0",
        "gpu-server@node0",
        "coordinator@node0",
    ],
)
def test_a_killed_service_comes_back_and_serves(mesh: Mesh, tmp_path: Path, service: str) -> None:
    client = mesh.client()
    name = f"survivor-{service.partition('@')[0]}"
    client.deploy(write_identity(tmp_path / "f", name))
    np.testing.assert_array_equal(client.infer(name, X)["y"], X["x"])
    mesh.kill(service)
    mesh.wait_ready()
    np.testing.assert_array_equal(client.infer(name, X, timeout=60)["y"], X["x"])
    client.delete(name)


@pytest.mark.parametrize("store", ["postgres", "nats", "redis"])
def test_a_killed_store_comes_back_and_nothing_is_forgotten(mesh: Mesh, tmp_path: Path, store: str) -> None:
    client = mesh.client()
    name = f"kept-{store}"
    client.deploy(write_identity(tmp_path / "f", name))
    mesh.kill(store)
    mesh.wait_ready()
    np.testing.assert_array_equal(client.infer(name, X, timeout=60)["y"], X["x"])
    client.deploy(write_identity(tmp_path / "g", f"{name}-after"))
    np.testing.assert_array_equal(client.infer(f"{name}-after", X, timeout=60)["y"], X["x"])
    client.delete(name)
    client.delete(f"{name}-after")
