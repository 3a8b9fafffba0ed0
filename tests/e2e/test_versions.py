"""Versions of a function in a whole mesh: traffic, roll-back, a version that does not load."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function

pytestmark = pytest.mark.timeout(300)
X = {"x": np.arange(4, dtype=np.float32)}
TENSORS = ([("x", "FP32", [-1])], [("y", "FP32", [-1])])

TIMES = """
    class Function:
        def load(self, context):
            print("loading times {factor}")

        def predict(self, inputs):
            return {{"y": inputs["x"] * {factor}}}
"""
BROKEN = """
    class Function:
        def load(self, context):
            print("the last words")
            raise ValueError("no such layer")

        def predict(self, inputs):
            return {"y": inputs["x"]}
"""


def write_times(folder: Path, name: str, factor: int) -> Path:
    return write_function(folder, name, TIMES.format(factor=factor), *TENSORS)


def factor(result: rouse.Result) -> float:
    return float(result["y"][1])


def test_the_old_version_goes_on_serving_while_the_new_one_fails_to_load(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    client.deploy(write_times(tmp_path / "v1", "careful", 1))
    outcomes: list[float] = []
    failures: list[Exception] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            try:
                outcomes.append(factor(client.infer("careful", X, timeout=60)))
            except rouse.RouseError as error:
                failures.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    try:
        mesh.wait_until(lambda: len(outcomes) > 3, "version 1 serves")
        with pytest.raises(rouse.FailedPrecondition, match="no such layer") as caught:
            client.deploy(write_function(tmp_path / "v2", "careful", BROKEN, *TENSORS))
        served = len(outcomes)
        mesh.wait_until(lambda: len(outcomes) > served + 3, "version 1 serves on")
    finally:
        stop.set()
        caller.join(60)
    assert not failures
    assert set(outcomes) == {1.0}
    assert caught.value.reason == "LOAD_FAILED"
    assert caught.value.metadata["version"] == "2"
    found = client.describe("careful")
    assert found.function.traffic == {1: 100}
    ids = {version.version: version.version_id for version in found.versions}
    broken = [i for i in found.instances if i.version_id == ids[2]]
    assert broken
    assert "no such layer" in broken[-1].reason
    lines = list(client.logs("careful", instance=broken[-1].instance_id))
    assert any("the last words" in line for line in lines)
    assert not any("loading times 1" in line for line in lines)
    # A version that cannot load says so under its number, too, and does not keep the caller waiting.
    with pytest.raises(rouse.FailedPrecondition) as caught:
        client.infer("careful", X, version=2, timeout=60)
    assert caught.value.reason == "LOAD_FAILED"
    client.delete("careful")


def test_traffic_is_split_and_rolled_back_at_once(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    for number in (1, 2, 3):
        done = client.deploy(write_times(tmp_path / f"v{number}", "split", number))
        assert (done.version.version, done.unchanged) == (number, False)
    assert client.deploy(tmp_path / "v3").unchanged
    assert client.set_traffic("split", {1: 60, 3: 40}).traffic == {1: 60, 3: 40}
    seen = {factor(client.infer("split", X, timeout=60)) for _ in range(40)}
    assert seen == {1.0, 3.0}
    assert factor(client.infer("split", X, version=2, timeout=60)) == 2.0
    client.roll_back("split")
    assert {factor(client.infer("split", X, timeout=60)) for _ in range(10)} == {3.0}
    with pytest.raises(rouse.FailedPrecondition) as caught:
        client.roll_back("split")
    assert caught.value.reason == "NOTHING_TO_ROLL_BACK"
    aside = client.deploy(write_times(tmp_path / "v4", "split", 4), traffic=False)
    assert aside.version.version == 4
    assert factor(client.infer("split", X, timeout=60)) == 3.0
    assert factor(client.infer("split", X, version=4, timeout=60)) == 4.0
    client.delete("split")


def test_a_function_is_put_to_sleep_and_woken_by_its_next_request(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    client.deploy(write_times(tmp_path / "v1", "tired", 5))
    assert factor(client.infer("tired", X, timeout=60)) == 5.0
    asleep = client.sleep("tired")
    assert (asleep.state, asleep.ready_instances) == ("SLEEPING", 0)
    mesh.wait_until(lambda: mesh.instance_pids("tired") == [], "its instance has ended")
    assert client.describe("tired").function.ready_instances == 0
    assert factor(client.infer("tired", X, timeout=60)) == 5.0
    client.sleep("tired")
    assert client.wake("tired", timeout=60).state == "READY"
    client.delete("tired")
