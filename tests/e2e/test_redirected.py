"""Functions with execution = "rouse" in a whole mesh: the bits of plain execution, by the devices' native executors."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import rouse
import rouse_native
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_bert, write_linear, write_resnet

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not rouse_native.built() or importlib.util.find_spec("rouse_native.redirect") is None,
        reason="the native core is not built on this machine",
    ),
]
SIZE = 1024  # 4 MiB of weights
EXECUTORS = {"gpu-server": {"executors": "true"}, "cluster-manager": {"executors": "true"}}


@pytest.fixture(scope="module")
def native_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One node with a device of 64 MiB and its executor."""
    mesh = Mesh(tmp_path_factory.mktemp("native"), devices=("host:gpu0=64MiB",), settings=EXECUTORS)
    mesh.start()
    yield mesh
    mesh.stop()


def deploy_both(client: rouse.Client, folder: Path) -> tuple[str, str]:
    """Deploys a folder for plain and for redirected execution; the names of the two functions."""
    manifest, name = folder / "rouse.toml", folder.name
    kept = manifest.read_text() if manifest.exists() else ""
    for execution in ("plain", "rouse"):
        manifest.write_text(f'execution = "{execution}"\n{kept}')
        client.deploy(folder, name=f"{name}-{execution}")
    return f"{name}-plain", f"{name}-rouse"


def test_results_are_those_of_plain_execution(native_mesh: Mesh, tmp_path: Path) -> None:
    client, draw = native_mesh.client(), np.random.default_rng(0)
    mask = np.ones((2, 16), np.int64)
    mask[1, 9:] = 0
    cases: dict[str, tuple[Path, dict[str, np.ndarray]]] = {
        "linear": (write_linear(tmp_path / "linear", "linear", 64, 3), {"x": draw.random((2, 64), dtype=np.float32)}),
        "resnet": (write_resnet(tmp_path / "resnet"), {"pixel_values": draw.random((1, 3, 64, 64), dtype=np.float32)}),
        "bert": (write_bert(tmp_path / "bert"), {"input_ids": np.arange(32).reshape(2, 16), "attention_mask": mask}),
    }
    for folder, inputs in cases.values():
        plain, redirected = deploy_both(client, folder)
        want = client.infer(plain, inputs, timeout=60)
        for _ in range(3):
            found = client.infer(redirected, inputs, timeout=60)
            assert set(found) == set(want)
            for name in want:
                np.testing.assert_array_equal(found[name], want[name])
        version = client.describe(redirected).function.version
        assert version is not None
        assert version.execution == "rouse"
        for name in (plain, redirected):
            client.delete(name)


@pytest.fixture
def narrow_mesh(tmp_path: Path) -> Iterator[Mesh]:
    """One node with a device that holds one of the models of SIZE at a time."""
    mesh = Mesh(tmp_path / "narrow", devices=("host:gpu0=6MiB",), settings=EXECUTORS)
    mesh.start()
    yield mesh
    mesh.stop()


@pytest.fixture
def shared_mesh(tmp_path: Path) -> Iterator[Mesh]:
    """One node with a device that holds two of the models of SIZE, and little beside them."""
    mesh = Mesh(tmp_path / "shared", devices=("host:gpu0=14MiB",), settings=EXECUTORS)
    mesh.start()
    yield mesh
    mesh.stop()


def test_what_a_function_holds_beside_its_weights_counts_whether_it_is_declared_or_not(
    shared_mesh: Mesh, tmp_path: Path
) -> None:
    client, draw = shared_mesh.client(), np.random.default_rng(1)
    few, many = (draw.random((rows, SIZE), dtype=np.float32) for rows in (2, 1024))

    def deploy(name: str, seed: int, resources: rouse.Resources) -> None:
        manifest = write_linear(tmp_path / name, name, SIZE, seed) / "rouse.toml"
        manifest.write_text(f'execution = "rouse"\n{manifest.read_text()}')
        client.deploy(tmp_path / name, resources=resources)
        client.infer(name, {"x": few}, timeout=60)

    deploy("first", 0, rouse.Resources())
    deploy("second", 1, rouse.Resources())

    def measured(name: str) -> int:
        # A node's report of a version that is new may not have come yet.
        return max((row.measured_working_bytes for row in client.describe(name).residency), default=0)

    def devices(name: str) -> set[str]:
        return {row.device for row in client.describe(name).residency}

    # Both are there, with what little they needed.
    shared_mesh.wait_until(lambda: measured("first") > 0 and measured("second") > 0, "both were measured")
    assert devices("first") == devices("second") == {"gpu0"}
    # 4 MiB of inputs and as much of outputs, which nobody has declared.
    y = client.infer("second", {"x": many}, timeout=60)["y"]
    shared_mesh.wait_until(lambda: measured("second") > 8 << 20, "what it held was measured")
    shared_mesh.wait_until(lambda: devices("first") == {""}, "the first has left for it")
    (left,) = client.describe("first").residency
    assert "others need more memory than was known" in left.reason
    (device,) = client.status().nodes[0].devices
    assert device.reserved_bytes == measured("second")
    client.infer("first", {"x": few}, timeout=60)

    # One that has declared less than it needs hears so, and goes on.
    client.delete("second")
    deploy("third", 1, rouse.Resources(working_memory_bytes=2 << 20))
    for _ in range(2):
        with pytest.raises(rouse.RouseError) as caught:
            client.infer("third", {"x": many}, timeout=60)
        assert "`working_memory_bytes`" in str(caught.value)
        np.testing.assert_array_equal(client.infer("third", {"x": many[:100]}, timeout=60)["y"], y[:100])
    shared_mesh.wait_until(lambda: measured("third") > 0, "the third was measured")
    assert measured("third") <= 4 << 20


def executor_pid(mesh: Mesh) -> int | None:
    """The native executor, a child of gpu-server; None where there is none now."""
    children = psutil.Process(mesh.services["gpu-server@node0"]).children()
    return next((int(child.pid) for child in children if child.name() == "rouse-executor"), None)


def test_evicted_models_and_killed_executors_come_back(narrow_mesh: Mesh, tmp_path: Path) -> None:
    client, x = narrow_mesh.client(), np.random.default_rng(1).random((2, SIZE), dtype=np.float32)
    want = {}
    for seed, name in enumerate(("one", "two")):
        plain, redirected = deploy_both(client, write_linear(tmp_path / name, name, SIZE, seed))
        want[redirected] = client.infer(plain, {"x": x}, timeout=60)["y"]
        client.delete(plain)

    def all_answer() -> None:
        for name, y in want.items():
            np.testing.assert_array_equal(client.infer(name, {"x": x}, timeout=60)["y"], y)

    all_answer()
    all_answer()
    killed = executor_pid(narrow_mesh)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    narrow_mesh.wait_until(lambda: executor_pid(narrow_mesh) not in (None, killed), "the executor is back")
    all_answer()
    assert client.describe("one-rouse").usage.swap_ins > 1


def test_without_executors_a_redirected_function_is_refused(mesh: Mesh, tmp_path: Path) -> None:
    write_linear(tmp_path / "f", "refused", 8, 0)
    manifest = tmp_path / "f" / "rouse.toml"
    manifest.write_text(f'execution = "rouse"\n{manifest.read_text()}')
    with pytest.raises(rouse.Unimplemented) as caught:
        mesh.client().deploy(tmp_path / "f")
    assert caught.value.reason == "EXECUTION_UNAVAILABLE"


def executors(mesh: Mesh) -> set[int]:
    """Process ids of the executors that live."""
    children = psutil.Process(mesh.services["gpu-server@node0"]).children(recursive=True)
    return {child.pid for child in children if child.name() == "rouse-executor"}


def test_isolated_functions_have_executors_of_their_own(native_mesh: Mesh, tmp_path: Path) -> None:
    client, shared = native_mesh.client(), executors(native_mesh)
    x = np.random.default_rng(1).random((2, SIZE), dtype=np.float32)
    own: dict[str, int] = {}
    want = {}
    for seed, name in enumerate(("alone", "apart")):
        folder = write_linear(tmp_path / name, name, SIZE, seed)
        client.deploy(folder, name=f"{name}-plain")
        want[name] = client.infer(f"{name}-plain", {"x": x}, timeout=60)["y"]
        manifest = folder / "rouse.toml"
        manifest.write_text(f'execution = "rouse"\nisolation = "isolated"\n{manifest.read_text()}')
        client.deploy(folder)
        np.testing.assert_array_equal(client.infer(name, {"x": x}, timeout=60)["y"], want[name])
        (own[name],) = executors(native_mesh) - shared - set(own.values())
    os.kill(own["alone"], signal.SIGKILL)
    np.testing.assert_array_equal(client.infer("apart", {"x": x}, timeout=60)["y"], want["apart"])
    assert own["apart"] in executors(native_mesh)
    assert shared < executors(native_mesh)
    # Killed between two requests: nothing was lost, the next one finds a new executor.
    native_mesh.wait_until(
        lambda: answers(client, "alone", x, want["alone"]), "the killed one's function answers again"
    )
    client.delete("apart")
    native_mesh.wait_until(lambda: own["apart"] not in executors(native_mesh), "its executor is gone with its function")
    for name in ("alone", "alone-plain", "apart-plain"):
        client.delete(name)
    native_mesh.wait_until(lambda: executors(native_mesh) == shared, "nothing but the devices' executors is left")
    # One that is there when the mesh stops goes with it: the fixture looks for what outlives it.
    client.deploy(tmp_path / "alone")
    np.testing.assert_array_equal(client.infer("alone", {"x": x}, timeout=60)["y"], want["alone"])
    assert len(executors(native_mesh) - shared) == 1


def answers(client: rouse.Client, name: str, x: np.ndarray, want: np.ndarray) -> bool:
    try:
        return bool(np.array_equal(client.infer(name, {"x": x}, timeout=60)["y"], want))
    except rouse.Unavailable:
        return False
