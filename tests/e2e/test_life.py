"""A function's life: deployed, woken, asleep, kept over a restart of the mesh, deleted to the last byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_identity, write_linear

pytestmark = pytest.mark.timeout(300)
X = {"x": np.arange(4, dtype=np.float32)}


def test_state_survives_a_stop_and_start_of_the_mesh(own_mesh: Mesh, tmp_path: Path) -> None:
    client = own_mesh.client()
    client.deploy(write_linear(tmp_path / "lin", "lin", 256, 7))
    x = np.ones((1, 256), np.float32)
    before = client.infer("lin", {"x": x})["y"]
    version = client.describe("lin").function.version
    own_mesh.stop()
    own_mesh.start()
    client = own_mesh.client()
    np.testing.assert_array_equal(client.infer("lin", {"x": x}, timeout=60)["y"], before)
    described = client.describe("lin")
    assert described.function.version == version
    own_mesh.wait_until(lambda: client.describe("lin").usage.requests == 2, "usage of both lives is counted")


def test_deleting_a_function_gives_back_every_byte(own_mesh: Mesh, tmp_path: Path) -> None:
    client = own_mesh.client()
    client.deploy(write_identity(tmp_path / "stays", "stays"))
    client.infer("stays", X)
    before = own_mesh.footprint()
    client.deploy(write_linear(tmp_path / "goes", "goes", 512, 1))
    client.infer("goes", {"x": np.ones((1, 512), np.float32)})
    during = own_mesh.footprint()
    assert during.device_bytes >= before.device_bytes + 4 * 512 * 512
    assert during.host_bytes > before.host_bytes
    assert during.disk_bytes > before.disk_bytes
    assert during.object_bytes > before.object_bytes
    assert during.rows["functions"] == before.rows["functions"] + 1
    client.delete("goes")
    after = own_mesh.footprint()
    assert after == before
    with pytest.raises(rouse.NotFound):
        client.infer("goes", {"x": np.ones((1, 512), np.float32)})
    np.testing.assert_array_equal(client.infer("stays", X)["y"], X["x"])


def test_a_function_goes_to_zero_and_its_next_request_waits_and_succeeds(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    client.deploy(write_identity(tmp_path / "f", "sleepy", extra="[scaling]\nidle_timeout_s = 1\n"))
    client.infer("sleepy", X)
    for _ in range(2):
        mesh.wait_until(lambda: client.describe("sleepy").function.ready_instances == 0, "the function sleeps")
        mesh.wait_until(lambda: mesh.instance_pids("sleepy") == [], "its process is gone")
        result = client.infer("sleepy", X, timeout=60)
        np.testing.assert_array_equal(result["y"], X["x"])
        assert result.timings.held_ms > 0
    client.delete("sleepy")


def test_a_new_version_replaces_the_old_one(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    x = np.ones((1, 64), np.float32)
    client.deploy(write_linear(tmp_path / "v1", "changing", 64, 1))
    first = client.infer("changing", {"x": x})
    client.deploy(write_linear(tmp_path / "v2", "changing", 64, 2))
    second = client.infer("changing", {"x": x})
    assert (first.version, second.version) == ("1", "2")
    assert not np.array_equal(first["y"], second["y"])
    np.testing.assert_array_equal(client.infer("changing", {"x": x}, version=1)["y"], first["y"])
    client.delete("changing")
