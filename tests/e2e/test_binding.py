"""Early binding, asked for by an environment variable as a user gives it to `rouse up`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_linear

pytestmark = pytest.mark.timeout(300)
SIDE = 1536  # 9 MiB: the device has room for two
X = {"x": np.ones((1, SIDE), np.float32)}
TIMEOUT_S = 60.0


@pytest.fixture
def early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mesh]:
    monkeypatch.setenv("ROUSE_GPU_SERVER_BINDING", "early")
    mesh = Mesh(tmp_path, devices=("host:gpu0=24MiB",))
    mesh.start()
    yield mesh
    mesh.stop()


def test_what_finds_no_room_is_refused_at_once_until_others_are_gone(early: Mesh, tmp_path: Path) -> None:
    client = early.client()
    for seed, name in enumerate(("first", "second", "third")):
        client.deploy(write_linear(tmp_path / name, name, SIDE, seed))
    for _ in range(2):
        for name in ("first", "second"):
            client.infer(name, X, timeout=TIMEOUT_S)
        began = time.monotonic()
        with pytest.raises(rouse.ResourceExhausted) as caught:
            client.infer("third", X, timeout=TIMEOUT_S)
        assert caught.value.reason == "DEVICE_FULL_EARLY_BINDING"
        assert time.monotonic() - began < TIMEOUT_S / 2, "it did not wait its deadline out"
        assert "most is free on gpu0" in caught.value.message

    def reason() -> str:
        return " ".join(row.reason for row in client.describe("third").residency)

    early.wait_until(lambda: reason().startswith("bound to no device (early binding)"), "describe says why")
    (device,) = client.status().nodes[0].devices
    assert (device.swap_ins, device.evictions) == (2, 0)
    client.delete("first")
    assert client.infer("third", X, timeout=TIMEOUT_S).device == "gpu0"
    early.wait_until(lambda: "bound early" in reason() or "released" in reason(), "describe says where it is")
