"""What batching gains and what it costs: three layers of PyTorch with and without it, beside two peers' batching."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rouse_loadtest import mesh, plot
from rouse_loadtest.load import Samples, ratios
from rouse_loadtest.peers import mlp
from rouse_loadtest.peers.servers import PEERS, Job
from rouse_loadtest.processes import NotStarted
from rouse_loadtest.report import Measure, figure, table
from rouse_loadtest.scenario import Run, Scenario
from rouse_loadtest.targets import Target, infer_request, interleaved, over_grpc
from rouse_testkit.environments import NotInstalled

CLIENTS = (1, 16)
ROUNDS, SECONDS = 7, 2.0
MAX_BATCH = 16
# What the peers need to batch at all; ours waits for nothing.
PEER_DELAY_S = 0.005
COMPARED = ("mlserver", "litserve")
TENSORS = {"x": np.linspace(-1, 1, 512, dtype=np.float32).reshape(1, 512)}
FUNCTION = """
import torch
from mlp import make_mlp

class Function:
    def load(self, context):
        torch.set_num_threads(1)
        self.model = make_mlp()
        context.bind(self.model, "weights.safetensors")

    def predict(self, inputs):
        return {"y": self.model(torch.from_numpy(inputs["x"])).numpy()}
"""


def deploy(meshed: mesh.Mesh, folder: Path, name: str, settings: str) -> Target:
    """The model as a function of the mesh."""
    from safetensors.torch import save_file

    inputs, outputs = ["x FP32 [-1, 512]"], ["y FP32 [-1, 512]"]
    mesh.write_function(folder, name, FUNCTION, inputs, outputs, f"[resources]\nthreads = 1\n{settings}")
    (folder / "mlp.py").write_text(inspect.getsource(mlp))
    save_file(mlp.make_mlp().state_dict(), str(folder / "weights.safetensors"))
    meshed.client.deploy(folder, timeout=mesh.DEPLOY_S)
    return over_grpc(name, meshed.address, infer_request(name, TENSORS))


def measure(run: Run) -> Sequence[Measure]:
    """Everything, and what it printed on the way."""
    rounds, seconds = (2, 0.5) if run.quick else (ROUNDS, SECONDS)
    found: list[Measure] = []
    with mesh.running(run.folder) as meshed:
        single = deploy(meshed, run.folder / "single", "single", "")
        batched = deploy(meshed, run.folder / "batched", "batched", f"[batching]\nmax_batch_size = {MAX_BATCH}\n")
        samples = asyncio.run(interleaved([single, batched], CLIENTS, rounds, seconds))
        _show(samples, ["single", "batched"])
        found += [
            Measure("throughput_gain.rouse", ratios(samples, 16, "batched", "single", "throughput"), "ratio", 1.0,
                    "higher", note="16 clients, with batching over without"),
            Measure("p99_ratio.rouse", ratios(samples, 16, "batched", "single", "p99_ms"), "ratio",
                    note="16 clients, with batching over without"),
            Measure("p50_alone_ratio.rouse", ratios(samples, 1, "batched", "single", "p50_ms"), "ratio", 1.05,
                    note="one client: what batching costs when there is nothing to batch"),
        ]  # fmt: skip
        for name in COMPARED:
            found += _beside(name, batched, run, rounds, seconds)
    plot.bars(
        run.plots / "batching.svg", "What batching gains at 16 clients", "throughput with over without",
        [(m.name.rpartition(".")[2], m.value) for m in found if m.name.startswith("throughput_gain.")],
    )  # fmt: skip
    return found


def _beside(name: str, ours: Target, run: Run, rounds: int, seconds: float) -> list[Measure]:
    """One peer with and without its batching, and the mesh's beside it."""
    try:
        with (
            PEERS[name](Job("mlp", TENSORS), run.folder / f"{name}-single") as single,
            PEERS[name](Job("mlp", TENSORS, MAX_BATCH, PEER_DELAY_S), run.folder / f"{name}-batched") as batched,
        ):
            pair = [Target("single", single.connect), Target("batched", batched.connect)]
            samples = asyncio.run(interleaved([*pair, Target("rouse", ours.connect)], CLIENTS, rounds, seconds))
    except (NotInstalled, NotStarted) as error:
        print(f"  {name}: not measured: {error}", flush=True)
        return []
    print(f"  {name}, and the mesh's batching beside it")
    _show(samples, ["single", "batched", "rouse"])
    return [
        Measure(f"throughput_gain.{name}", ratios(samples, 16, "batched", "single", "throughput"), "ratio",
                better="higher", note="16 clients, with batching over without"),
        Measure(f"p50_alone_ratio.{name}", ratios(samples, 1, "batched", "single", "p50_ms"), "ratio",
                note="one client, with batching over without"),
        Measure(f"throughput_over.{name}", ratios(samples, 16, "rouse", "batched", "throughput"), "ratio",
                better="higher", note=f"16 clients, both with batching, against {name}"),
        Measure(f"p50_alone_over.{name}", ratios(samples, 1, "rouse", "batched", "p50_ms"), "ratio",
                note=f"one client, both with batching, against {name}"),
    ]  # fmt: skip


def _show(samples: Samples, names: Sequence[str]) -> None:
    rows = []
    for name in names:
        cells = []
        for clients, what in ((1, "p50_ms"), (1, "p99_ms"), (16, "p50_ms"), (16, "p99_ms"), (16, "throughput")):
            cells.append(figure(Measure("", [getattr(s, what) for s in samples[name, clients]], "").value))
        rows.append([name, *cells])
    print(table(rows, ["", "p50 ms, 1 client", "p99 ms", "p50 ms, 16 clients", "p99 ms ", "requests/s"]), end="\n\n")


SCENARIO = Scenario(
    "batching", "three layers of PyTorch with and without batching, beside MLServer and LitServe", 6, measure
)
