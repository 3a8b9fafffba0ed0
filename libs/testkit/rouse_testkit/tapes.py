"""Functions with execution = "rouse" whose requests become tapes, and what a mesh's executor says of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

import rouse
from rouse_common.link import Links
from rouse_contracts import core
from rouse_testkit.links import ask
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import linear_weight, write_linear

LIMIT_S = 60.0
# Settings of a mesh that takes such functions.
EXECUTORS = {"gpu-server": {"executors": "true"}, "cluster-manager": {"executors": "true"}}


def models(mesh: Mesh) -> list[core.CoreModel]:
    """What the executor of the mesh's only device has, and which tapes it replayed how often."""

    async def described() -> list[core.CoreModel]:
        links = Links(1 << 20)
        try:
            (socket,) = mesh.info.folders.memory.rglob("executor-*.sock")
            address, request = f"unix:{socket}", core.DescribeRequest()
            return list((await ask(links, address, core.DESCRIBE, request, core.DescribeResponse, LIMIT_S)).models)
        finally:
            await links.close()

    return asyncio.run(described())


def replays(mesh: Mesh) -> int:
    return sum(tape.replays for model in models(mesh) for tape in model.tapes)


def deploy(client: rouse.Client, folder: Path, name: str, execution: str) -> str:
    """Deploys a folder for plain or redirected execution, under a name, which it returns."""
    manifest = folder / "rouse.toml"
    kept = manifest.read_text() if manifest.exists() else ""
    manifest.write_text(f'execution = "{execution}"\n{kept}')
    client.deploy(folder, name=name)
    manifest.write_text(kept)
    return name


BRANCHING = """
import torch

class Function:
    def load(self, context):
        self.layer = torch.nn.Linear({size}, {size}, bias=False, device="meta")
        self.calls = 0
        context.bind(self.layer, "weights.safetensors")

    def predict(self, inputs):
        y = self.layer(torch.from_numpy(inputs["x"]))
        if {counts}:
            self.calls += 1
        return {{"y": y * (2 + self.calls) if y.sum() > 0 else y - 1}}
"""


def write_branching(folder: Path, name: str, *, counts: bool = False, size: int = 64, extra: str = "") -> Path:
    """A function that goes another way where its first result is negative, and that may count its calls; `extra` is
    the end of its manifest."""
    write_linear(folder, name, size, 7, extra)
    (folder / "function.py").write_text(BRANCHING.format(counts=counts, size=size))
    return folder


def branching(x: np.ndarray, calls: int = 0) -> np.ndarray:
    """What it computes."""
    import torch

    y = torch.nn.functional.linear(torch.from_numpy(x), linear_weight(x.shape[1], 7))
    found: np.ndarray = (y * (2 + calls) if y.sum() > 0 else y - 1).numpy()
    return found


def ways(seed: int, size: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Inputs that lead one way, and the other."""
    x = np.random.default_rng(seed).random((2, size), dtype=np.float32)
    return (x, -x) if branching(x).sum() > 0 else (-x, x)
