"""Functions that keep no process: while they sleep their tapes answer, and what no tape answers wakes an instance."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import rouse
import rouse_native
from rouse_testkit.mesh import Mesh
from rouse_testkit.tapes import EXECUTORS, branching, deploy, models, replays, ways, write_branching

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not rouse_native.built() or importlib.util.find_spec("rouse_native.redirect") is None,
        reason="the native core is not built on this machine",
    ),
]

SIZE = 1024  # 4 MiB of weights


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    """One node with a device that holds one of the test's models at a time."""
    torch.set_num_threads(1)
    mesh = Mesh(tmp_path / "asleep", devices=("host:gpu0=6MiB",), settings=EXECUTORS | {"scaler": {"period_s": "0.2"}})
    mesh.start()
    yield mesh
    mesh.stop()


def answered(client: rouse.Client, name: str, x: np.ndarray) -> None:
    np.testing.assert_array_equal(client.infer(name, {"x": x}, timeout=60)["y"], branching(x))


def falls_asleep(mesh: Mesh, client: rouse.Client, name: str) -> None:
    mesh.wait_until(lambda: not mesh.instance_pids(name), f"{name} has no process")
    mesh.wait_until(lambda: client.describe(name).function.state == "SLEEPING", f"{name} sleeps")


def record(mesh: Mesh, client: rouse.Client, name: str, x: np.ndarray) -> None:
    """Calls a function until the node has a tape of it."""

    def recorded() -> bool:
        answered(client, name, x)
        return [row.tapes for row in client.describe(name).residency] == [1]

    mesh.wait_until(recorded, f"{name} has a tape")


def instances(client: rouse.Client, name: str) -> set[str]:
    """Every instance that there has been."""
    return {instance.instance_id for instance in client.describe(name).instances}


def test_a_sleeping_function_answers_without_a_process(mesh: Mesh, tmp_path: Path) -> None:
    client, (up, _) = mesh.client(), ways(3, SIZE)
    for name in ("one", "two"):
        deploy(client, write_branching(tmp_path / name, name, size=SIZE), name, "rouse")
        record(mesh, client, name, up)
        client.sleep(name)
        falls_asleep(mesh, client, name)
        assert "1 tape answers without a process" in client.describe(name).function.reason
    before = {name: instances(client, name) for name in ("one", "two")}
    # One model's room: each request swaps its own in, and the other one out.
    for _ in range(3):
        for name in before:
            began = time.perf_counter()
            answered(client, name, up)
            print(f"{name}: {(time.perf_counter() - began) * 1000:.1f} ms")
            assert mesh.instance_pids(name) == []
    assert replays(mesh) == 1
    assert {name: instances(client, name) for name in before} == before
    for name in before:
        assert client.describe(name).function.state == "SLEEPING"


def test_two_requests_make_a_tape_whatever_comes_between_them(mesh: Mesh, tmp_path: Path) -> None:
    client, (up, _) = mesh.client(), ways(8, SIZE)
    for name in ("evicted", "slept"):
        deploy(client, write_branching(tmp_path / name, name, size=SIZE), name, "rouse")
        # The device has room for one: the second leaves none of the first's session.
        answered(client, name, up)
    nodes = mesh.data_dir / "nodes"
    assert len(list(nodes.rglob("*.candidate"))) == 2
    client.sleep("slept")
    falls_asleep(mesh, client, "slept")
    for name in ("evicted", "slept"):
        assert [row.tapes for row in client.describe(name).residency] == [0]
        answered(client, name, up)

        def has_tape(name: str = name) -> bool:
            return [row.tapes for row in client.describe(name).residency] == [1]

        mesh.wait_until(has_tape, f"{name} has a tape of two requests")
    # What led to them is not kept any longer.
    assert not list(nodes.rglob("*.candidate"))
    for name in ("evicted", "slept"):
        client.sleep(name)
        falls_asleep(mesh, client, name)
        answered(client, name, up)
        assert mesh.instance_pids(name) == []


def test_a_restarted_gpu_server_answers_for_functions_that_sleep(mesh: Mesh, tmp_path: Path) -> None:
    client, (up, _) = mesh.client(), ways(6, SIZE)
    for name in ("one", "two"):
        deploy(client, write_branching(tmp_path / name, name, size=SIZE), name, "rouse")
        record(mesh, client, name, up)
        client.sleep(name)
        falls_asleep(mesh, client, name)
    before = {name: instances(client, name) for name in ("one", "two")}
    mesh.kill("gpu-server@node0")
    for _ in range(2):
        for name in before:
            answered(client, name, up)
            assert mesh.instance_pids(name) == []
    assert {name: instances(client, name) for name in before} == before
    # Of the one that the device holds now, since it was mapped.
    assert replays(mesh) == 1
    for name in before:
        assert client.describe(name).function.state == "SLEEPING"
        assert client.describe(name).usage.failures == 0


def test_an_idle_function_is_let_go_and_woken_by_what_no_tape_answers(mesh: Mesh, tmp_path: Path) -> None:
    client, (up, down) = mesh.client(), ways(4, SIZE)
    folder = write_branching(tmp_path / "idle", "idle", size=SIZE, extra="[scaling]\nidle_timeout_s = 1")
    deploy(client, folder, "idle", "rouse")
    record(mesh, client, "idle", up)
    falls_asleep(mesh, client, "idle")
    before = instances(client, "idle")
    # For longer than it may be idle, and for many of the scaler's rounds, it is called and stays asleep.
    until = time.monotonic() + 2
    while time.monotonic() < until:
        answered(client, "idle", up)
    assert instances(client, "idle") == before
    assert mesh.instance_pids("idle") == []
    # Values that lead another way, then inputs of another shape.
    for x in (down, np.concatenate([up, up])):
        answered(client, "idle", x)
        assert len(instances(client, "idle") - before) == 1
        falls_asleep(mesh, client, "idle")
        before = instances(client, "idle")
        answered(client, "idle", up)
        assert instances(client, "idle") == before
    assert client.describe("idle").usage.failures == 0


def test_small_models_that_an_executor_has_no_room_for_at_once_all_answer(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    # An executor maps in pieces of 2 MiB: it has room for four of these, and the device's ledger for all.
    mesh = Mesh(tmp_path / "small", devices=("host:gpu0=8MiB",), settings=EXECUTORS).start()
    try:
        client, (up, _) = mesh.client(), ways(5)
        names = [f"small{number}" for number in range(6)]
        for number, name in enumerate(names):
            folder = write_branching(tmp_path / name, name)
            # An artefact of its own, and so a range of its own.
            (folder / "number.txt").write_text(str(number))
            deploy(client, folder, name, "rouse")
            record(mesh, client, name, up)
            client.sleep(name)
            falls_asleep(mesh, client, name)
        before = {name: instances(client, name) for name in names}
        for _ in range(2):
            for name in names:
                answered(client, name, up)
        assert {name: instances(client, name) for name in names} == before
        assert 0 < len(models(mesh)) < len(names)
    finally:
        mesh.stop()
