"""A model's virtual addresses: the same in every instance, on every node, after every restart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function

pytestmark = pytest.mark.timeout(300)
AT_ONCE = 32
CODE = """
    import torch

    class Function:
        def load(self, context):
            self.layer = torch.nn.Linear(8, 8, bias=False, device="meta")
            context.bind(self.layer, "weights.safetensors")

        def predict(self, inputs):
            return {"address": torch.tensor([self.layer.weight.data_ptr()])}
"""


def write_pointer(folder: Path, name: str, seed: int) -> Path:
    """A function with two instances that answers where its weight is."""
    import torch
    from safetensors.torch import save_file

    write_function(
        folder, name, CODE, [("x", "FP32", [1])], [("address", "INT64", [1])],
        "[scaling]\nmin_instances = 2\nmax_instances = 2\n",
    )  # fmt: skip
    save_file({"weight": torch.full((8, 8), float(seed))}, folder / "weights.safetensors")
    return folder


def where(client: rouse.Client, name: str) -> tuple[str, int]:
    """The node of the instance that answers, and the address there."""
    result = client.infer(name, {"x": np.zeros(1, np.float32)}, timeout=60)
    return result.node, int(result["address"][0])


def places(mesh: Mesh, name: str) -> dict[str, int]:
    """Where the two instances of a function have their weight, by node, once each node that has one has answered."""
    client = mesh.client()
    mesh.wait_until(lambda: client.describe(name).function.ready_instances == 2, "both instances serve")
    nodes = {instance.node for instance in client.describe(name).instances if instance.state == "READY"}
    found: dict[str, int] = {}

    def each() -> bool:
        # So many at once that they do not all go where the weights are on a device already.
        with ThreadPoolExecutor(AT_ONCE) as asking:
            found.update(asking.map(lambda _: where(client, name), range(AT_ONCE)))
        return nodes <= set(found)

    mesh.wait_until(each, "an instance of each node answers")
    return found


def base_of(mesh: Mesh, name: str) -> int:
    """Where the control plane says that the model is."""
    version = mesh.client().describe(name).function.version
    assert version is not None
    assert version.addresses is not None
    return version.addresses.base


def test_a_model_has_the_same_addresses_everywhere_and_after_a_restart(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path / "mesh", nodes=2)
    mesh.start()
    try:
        for seed, name in enumerate(("one", "two")):
            mesh.client().deploy(write_pointer(tmp_path / name, name, seed))
        bases = {name: base_of(mesh, name) for name in ("one", "two")}
        assert bases["one"] != bases["two"]
        for life in range(2):
            if life:
                mesh.restart_all()
            for name, base in bases.items():
                found = places(mesh, name)
                assert set(found.values()) == {base}
                # After a restart a node may get both, which it shares, before the other one is back.
                assert life or set(found) == {"node0", "node1"}
                assert base_of(mesh, name) == base
    finally:
        mesh.stop()
