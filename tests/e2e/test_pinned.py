"""Pinned functions, and functions with an instance on each of two devices."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_linear

pytestmark = pytest.mark.timeout(300)
SIDE = 1024
X = {"x": np.ones((1, SIDE), np.float32)}


@pytest.fixture(scope="module")
def two_devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh of one node with two devices, each with room for five of the functions here."""
    mesh = Mesh(tmp_path_factory.mktemp("mesh"), devices=("host:gpu0=24MiB", "host:gpu1=24MiB"))
    mesh.start()
    yield mesh
    mesh.stop()


def on_devices(client: rouse.Client, name: str) -> list[rouse.Residency]:
    return [r for r in client.describe(name).residency if r.device and r.state in ("DEVICE", "EXECUTING")]


def pin(folder: Path, name: str) -> Path:
    write_linear(folder, name, SIDE, 1)
    manifest = folder / "rouse.toml"
    manifest.write_text("pinned = true\n" + manifest.read_text())
    return folder


def test_pinned_weights_are_there_before_any_request_and_stay(tiny_mesh: Mesh, tmp_path: Path) -> None:
    client = tiny_mesh.client()
    client.deploy(pin(tmp_path / "p", "pinned"))
    tiny_mesh.wait_until(lambda: len(on_devices(client, "pinned")) == 1, "it is on a device")
    assert client.describe("pinned").usage.requests == 0
    assert on_devices(client, "pinned")[0].reason.startswith("pinned")
    # Eight of 4 MiB do not fit on 24 MiB: they come and go beside it.
    names = [f"f{number}" for number in range(8)]
    for number, name in enumerate(names):
        client.deploy(write_linear(tmp_path / name, name, SIDE, number))
    for name in [*names, *names]:
        client.infer(name, X, timeout=60)

    def evicted() -> int:
        return sum(d.evictions for node in client.status().nodes for d in node.devices)

    tiny_mesh.wait_until(lambda: evicted() > 0, "others were evicted")
    found = client.describe("pinned").residency
    assert [r.swap_ins for r in found if r.device] == [1], "it never left"
    client.infer("pinned", X, timeout=60)
    with pytest.raises(rouse.FailedPrecondition) as caught:
        client.deploy(pin(tmp_path / "q", "big"), resources=rouse.Resources(working_memory_bytes=18 << 20))
    assert caught.value.reason == "PIN_TOO_LARGE"
    assert "big" not in [function.name for function in client.functions()]
    for name in ("pinned", *names):
        client.delete(name)


SLOW = """
import time
import torch


class Function:
    def load(self, context):
        self.layer = torch.nn.Linear(1024, 1024, bias=False, device="meta")
        context.bind(self.layer, "weights.safetensors")

    def predict(self, inputs):
        time.sleep(0.5)
        return {"y": self.layer(torch.from_numpy(inputs["x"].copy()))}
"""


def test_two_instances_of_a_function_serve_at_once_on_two_devices(two_devices: Mesh, tmp_path: Path) -> None:
    client = two_devices.client()
    folder = write_linear(tmp_path / "f", "double", SIDE, 1, "[scaling]\nmin_instances = 2\nmax_instances = 2\n")
    (folder / "function.py").write_text(SLOW)
    client.deploy(folder)
    two_devices.wait_until(lambda: client.describe("double").function.ready_instances == 2, "both instances are ready")

    def executed(result: rouse.Result) -> tuple[int, int]:
        (span,) = [
            s for s in client.trace(result.trace_id, settle=20) if s.name == "execute" and s.service == "executor"
        ]
        return span.start_unix_nanos, span.end_unix_nanos

    def overlapped() -> bool:
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda _: client.infer("double", X, timeout=60), range(2)))
        (start_a, end_a), (start_b, end_b) = map(executed, results)
        return {r.device for r in results} == {"gpu0", "gpu1"} and max(start_a, start_b) < min(end_a, end_b)

    two_devices.wait_until(overlapped, "both devices compute at once", timeout_s=120)
    client.delete("double")
