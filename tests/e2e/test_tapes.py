"""Tapes in a whole mesh: recorded by instances, kept by model-repository, replayed by executors in their place."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rouse
import rouse_native
from rouse_common.link import Links
from rouse_contracts.core import CoreModel
from rouse_native.executor import ExecutorClient
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_bert, write_resnet

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not rouse_native.built() or importlib.util.find_spec("rouse_native.redirect") is None,
        reason="the native core is not built on this machine",
    ),
]
EXECUTORS = {"gpu-server": {"executors": "true"}, "cluster-manager": {"executors": "true"}}
SECONDS = 60.0


@pytest.fixture(scope="module")
def native_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One node with a device of 64 MiB and its executor."""
    mesh = Mesh(tmp_path_factory.mktemp("tapes"), devices=("host:gpu0=64MiB",), settings=EXECUTORS)
    mesh.start()
    yield mesh
    mesh.stop()


def models(mesh: Mesh) -> list[CoreModel]:
    """What the device's executor has, and which tapes it replayed how often."""

    async def ask() -> list[CoreModel]:
        links = Links(1 << 20)
        try:
            (socket,) = mesh.info.folders.memory.rglob("executor-*.sock")
            return list((await ExecutorClient(links, f"unix:{socket}").describe(SECONDS)).models)
        finally:
            await links.close()

    return asyncio.run(ask())


def replays(mesh: Mesh) -> int:
    return sum(tape.replays for model in models(mesh) for tape in model.tapes)


def deploy(client: rouse.Client, folder: Path, name: str, execution: str) -> str:
    manifest = folder / "rouse.toml"
    kept = manifest.read_text() if manifest.exists() else ""
    manifest.write_text(f'execution = "{execution}"\n{kept}')
    client.deploy(folder, name=name)
    manifest.write_text(kept)
    return name


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
