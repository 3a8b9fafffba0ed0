"""Tapes in a whole mesh: recorded by instances, kept by model-repository, replayed by executors in their place."""

from __future__ import annotations

import collections
import importlib.util
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

import rouse
import rouse_native
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_bert, write_resnet
from rouse_testkit.tapes import EXECUTORS, branching, deploy, models, replays, ways, write_branching

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not rouse_native.built() or importlib.util.find_spec("rouse_native.redirect") is None,
        reason="the native core is not built on this machine",
    ),
]


@pytest.fixture(scope="module")
def native_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One node with a device of 64 MiB and its executor."""
    mesh = Mesh(tmp_path_factory.mktemp("tapes"), devices=("host:gpu0=64MiB",), settings=EXECUTORS)
    mesh.start()
    yield mesh
    mesh.stop()


def test_requests_are_replayed_once_two_were_alike(native_mesh: Mesh, tmp_path: Path) -> None:
    client, draw = native_mesh.client(), np.random.default_rng(0)
    cases = {
        "resnet": (
            write_resnet(tmp_path / "resnet"),
            lambda: {"pixel_values": draw.random((1, 3, 64, 64), dtype=np.float32)},
        ),
        "bert": (
            write_bert(tmp_path / "bert"),
            lambda: {"input_ids": draw.integers(0, 99, (2, 16)), "attention_mask": np.ones((2, 16), np.int64)},
        ),
    }
    for name, (folder, inputs) in cases.items():
        plain = deploy(client, folder, f"{name}-plain", "plain")
        taped = deploy(client, folder, f"{name}-taped", "rouse")

        def alike(plain: str = plain, taped: str = taped, inputs: object = inputs) -> None:
            given = inputs()  # type: ignore[operator]
            want, found = client.infer(plain, given, timeout=60), client.infer(taped, given, timeout=60)
            assert set(found) == set(want)
            for key in want:
                np.testing.assert_array_equal(found[key], want[key])

        def replayed() -> bool:
            alike()
            return replays(native_mesh) > 0

        native_mesh.wait_until(replayed, "a tape answers")
        before = replays(native_mesh)
        for _ in range(5):
            alike()
        assert replays(native_mesh) == before + 5
        client.delete(plain)
        client.delete(taped)


def guards_missed(mesh: Mesh) -> int:
    return sum(tape.guards_missed for model in models(mesh) for tape in model.tapes)


def test_values_that_lead_another_way_are_the_instance_s(native_mesh: Mesh, tmp_path: Path) -> None:
    client = native_mesh.client()
    deploy(client, write_branching(tmp_path / "branching", "branching", counts=False), "branching", "rouse")
    up, down = ways(1)
    torch.set_num_threads(1)

    def answered(x: np.ndarray) -> bool:
        np.testing.assert_array_equal(client.infer("branching", {"x": x}, timeout=60)["y"], branching(x))
        return True

    native_mesh.wait_until(lambda: answered(up) and replays(native_mesh) > 0, "a tape of one way")
    before = replays(native_mesh)
    assert answered(down)
    assert (replays(native_mesh), guards_missed(native_mesh)) == (before, 1)
    # The other way gets a tape of its own.
    native_mesh.wait_until(
        lambda: answered(down) and sum(len(model.tapes) for model in models(native_mesh)) > 0
        and replays(native_mesh) > before, "a tape of the other way",
    )  # fmt: skip
    before = replays(native_mesh)
    assert answered(up)
    assert answered(down)
    assert replays(native_mesh) == before + 2
    client.delete("branching")


def test_what_counts_its_calls_is_no_tape(native_mesh: Mesh, tmp_path: Path) -> None:
    client, (up, _) = native_mesh.client(), ways(1)
    deploy(client, write_branching(tmp_path / "counting", "counting", counts=True), "counting", "rouse")
    for calls in range(1, 7):
        found = client.infer("counting", {"x": up}, timeout=60)["y"]
        np.testing.assert_array_equal(found, branching(up, calls))
    assert replays(native_mesh) == 0

    def told() -> bool:
        return any("'calls'" in row.eager_reason for row in client.describe("counting").residency)

    native_mesh.wait_until(told, "the reason is told")
    client.delete("counting")


def test_after_a_restart_the_first_request_is_a_replay(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path / "restarted", devices=("host:gpu0=64MiB",), settings=EXECUTORS)
    mesh.start()
    try:
        client, (up, _) = mesh.client(), ways(2)
        deploy(client, write_branching(tmp_path / "kept", "kept", counts=False), "kept", "rouse")

        def replayed() -> bool:
            np.testing.assert_array_equal(client.infer("kept", {"x": up}, timeout=60)["y"], branching(up))
            return replays(mesh) > 0

        mesh.wait_until(replayed, "a tape answers")
        mesh.wait_until(lambda: [row.tapes for row in client.describe("kept").residency] == [1], "described")
        mesh.restart_all()
        client = mesh.client()
        np.testing.assert_array_equal(client.infer("kept", {"x": up}, timeout=60)["y"], branching(up))
        assert replays(mesh) == 1
        kill_executors_under_load(mesh, "kept", up)
    finally:
        mesh.stop()


def kill_executors_under_load(mesh: Mesh, function: str, x: np.ndarray) -> None:
    """Requests that tapes answer, while the executor that replays them is killed: each ends once."""
    want, outcomes = branching(x), collections.Counter[str]()
    stop = threading.Event()

    def ask(client: rouse.Client) -> None:
        while not stop.is_set():
            try:
                found = client.infer(function, {"x": x}, timeout=30)["y"]
                outcomes["answered" if np.array_equal(found, want) else "wrong"] += 1
            except rouse.RouseError as error:
                outcomes[error.reason] += 1

    threads = [threading.Thread(target=ask, args=(mesh.client(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            before = outcomes["answered"]
            mesh.wait_until(lambda before=before: outcomes["answered"] > before + 10, "answers")  # type: ignore[misc]
            mesh.wait_until(lambda: executor_pid(mesh) is not None, "an executor")
            os.kill(executor_pid(mesh) or 0, signal.SIGKILL)
        before = outcomes["answered"]
        mesh.wait_until(lambda: outcomes["answered"] > before + 10 and replays(mesh) > 0, "replays after the last kill")
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert set(outcomes) <= {"answered", "EXECUTOR_LOST", "FUNCTION_RAISED"}, outcomes


def executor_pid(mesh: Mesh) -> int | None:
    """The native executor, a child of gpu-server; None where there is none now."""
    children = psutil.Process(mesh.services["gpu-server@node0"]).children()
    return next((int(child.pid) for child in children if child.name() == "rouse-executor"), None)
