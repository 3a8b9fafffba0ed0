"""Devices behind switches of known rates: where loads go, and where they come from."""

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
SIDE = 1024  # 4 MiB
X = {"x": np.ones((1, SIDE), np.float32)}
# The model takes eight seconds over the switch of gpu0 and gpu1, and no time to gpu2.
TOPOLOGY = """
[[switch]]
devices = ["gpu0", "gpu1"]
rate = "500KB"

[[link]]
devices = ["gpu0", "gpu2"]
rate = "2GB"
"""
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


@pytest.fixture
def wired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mesh]:
    path = tmp_path / "topology.toml"
    path.write_text(TOPOLOGY)
    monkeypatch.setenv("ROUSE_GPU_SERVER_TOPOLOGY", str(path))
    mesh = Mesh(tmp_path, devices=[f"host:gpu{number}=24MiB" for number in range(3)])
    mesh.start()
    yield mesh
    mesh.stop()


def rows(client: rouse.Client, name: str) -> dict[str, rouse.Residency]:
    return {row.device: row for row in client.describe(name).residency if row.device}


def test_a_load_goes_to_the_quiet_switch_and_a_hot_model_is_copied_over_the_direct_link(
    wired: Mesh, tmp_path: Path
) -> None:
    client = wired.client()
    client.deploy(write_linear(tmp_path / "other", "other", SIDE, 1))
    hot = write_linear(tmp_path / "hot", "hot", SIDE, 2, "[scaling]\nmin_instances = 2\nmax_instances = 2\n")
    (hot / "function.py").write_text(SLOW)
    client.deploy(hot)
    wired.wait_until(lambda: client.describe("hot").function.ready_instances == 2, "both instances are ready")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.infer, "hot", X, timeout=100)
        wired.wait_until(lambda: "gpu0" in rows(client, "hot"), "it is on its way to gpu0")
        assert rows(client, "hot")["gpu0"].state == "SWAPPING_IN", "the switch is as slow as the file says"
        # gpu1 is as idle as gpu2, but behind the switch that is busy.
        assert client.infer("other", X, timeout=100).device == "gpu2"
        wired.wait_until(lambda: "gpu2" in rows(client, "other"), "describe says where it is")
        assert "gpu2 from the host: no neighbour loads" in rows(client, "other")["gpu2"].reason
        assert first.result().device == "gpu0"

        # Two at once: the device that holds the model is busy with one of them.
        def copied() -> bool:
            list(pool.map(lambda _: client.infer("hot", X, timeout=100), range(2)))
            return "gpu2" in rows(client, "hot")

        wired.wait_until(copied, "there is a second copy", timeout_s=120)
    assert "gpu2 from busy gpu0 at 2 GB/s" in rows(client, "hot")["gpu2"].reason
    wired.wait_until(lambda: bool(rows(client, "hot")["gpu0"].heaviness), "describe says what a swap costs")
    for name in ("hot", "other"):
        client.delete(name)
