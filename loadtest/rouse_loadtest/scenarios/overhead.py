"""What the mesh costs beside the function: an identity through it, beside bare servers and beside its peers."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from rouse_loadtest import hops, mesh, plot
from rouse_loadtest.load import Samples, ratios
from rouse_loadtest.peers.servers import PEERS, Job
from rouse_loadtest.processes import NotStarted, free_port, idle_cost, serving
from rouse_loadtest.report import Measure, figure, table
from rouse_loadtest.scenario import Run, Scenario
from rouse_loadtest.targets import Target, infer_request, interleaved, over_grpc
from rouse_testkit.environments import NotInstalled

ALONE, MANY = 1, 16
ROUNDS, SECONDS = 7, 2.0
PEER_ROUNDS = 5
HOPS_S, HOP_TRACES, IDLE_S = 3.0, 20, 10.0
# A peer's figures are shown; a bar stands where the peer, like the mesh, has a proxy before its workers.
COMPARED = ("mlserver", "kserve", "ray")
PEER_BARS = {"ray": 2.5}
TENSORS = {"x": np.arange(16, dtype=np.float32).reshape(1, 16)}
# Throughput over the bare echo's, by server.
SHARE = "throughput_over_echo."
IDENTITY = """
class Function:
    def predict(self, inputs):
        return {"y": inputs["x"]}
"""


@contextmanager
def baselines(folder: Path) -> Iterator[list[Target]]:
    """The echo and the chain of two hops."""
    request = infer_request("identity", TENSORS)
    echo, proxy = free_port(), free_port()
    command = [sys.executable, "-m", "rouse_loadtest.baselines", "--port"]
    with (
        serving([*command, str(echo)], echo, folder / "echo.log"),
        serving([*command, str(proxy), "--upstream", f"127.0.0.1:{echo}"], proxy, folder / "proxy.log"),
    ):
        yield [
            over_grpc("echo", f"127.0.0.1:{echo}", request),
            over_grpc("two hops", f"127.0.0.1:{proxy}", request),
        ]


def measure(run: Run) -> Sequence[Measure]:
    """Everything, and what it printed on the way."""
    rounds, seconds = (2, 0.5) if run.quick else (ROUNDS, SECONDS)
    with ExitStack() as stack:
        bare = stack.enter_context(baselines(run.folder))
        meshed = stack.enter_context(mesh.running(run.folder))
        folder = mesh.write_function(
            run.folder / "identity", "identity", IDENTITY, ["x FP32 [-1, 16]"], ["y FP32 [-1, 16]"]
        )
        meshed.client.deploy(folder, timeout=mesh.DEPLOY_S)
        ours = over_grpc("rouse", meshed.address, infer_request("identity", TENSORS))
        print(
            f"  echo, two hops and mesh: {rounds} rounds of {seconds:.1f} s at {ALONE} and {MANY} clients", flush=True
        )
        samples = asyncio.run(interleaved([*bare, ours], [ALONE, MANY], rounds, seconds))
        _show(samples, ["echo", "two hops", "rouse"])
        found = _over_bare(samples)
        _show_hops(meshed, ours, run)
        cost = idle_cost(meshed.process, IDLE_S)
        found.append(Measure("idle_resident_mb", [cost.resident_mb], "MB", note="mesh and stores, shared pages once"))
        found.append(Measure("idle_cores", [cost.cores], "cores", note="mesh and stores"))
        for name in COMPARED:
            found += _beside(name, ours, bare[0], run)
    plot.bars(
        run.plots / "overhead.svg", "Identity, throughput at 16 clients over the bare echo's", "ratio",
        [("echo", 1.0), *((m.name.removeprefix(SHARE), m.value) for m in found if m.name.startswith(SHARE))],
    )  # fmt: skip
    return found


def _show(samples: Samples, names: Sequence[str]) -> None:
    rows = []
    for name in names:
        alone, many = samples[name, ALONE], samples[name, MANY]
        rows.append(
            [
                name,
                *(figure(Measure("", [getattr(s, what) for s in group], "").value)
                  for group, what in ((alone, "p50_ms"), (alone, "p99_ms"), (many, "throughput"), (many, "p99_ms"))),
            ]
        )  # fmt: skip
    print(table(rows, ["", "p50 ms, 1 client", "p99 ms", "requests/s, 16 clients", "p99 ms "]), end="\n\n")


def _over_bare(samples: Samples) -> list[Measure]:
    found = []
    for base, short, bars in (("echo", "echo", (None, None)), ("two hops", "two_hops", (1.5, 0.70))):
        latency, throughput = bars
        found.append(
            Measure(f"p50_over_{short}", ratios(samples, ALONE, "rouse", base, "p50_ms"), "ratio", latency,
                    note=f"one client, against the bare {base}")
        )  # fmt: skip
        found.append(
            Measure(f"throughput_over_{short}", ratios(samples, MANY, "rouse", base, "throughput"), "ratio", throughput,
                    "higher", note=f"16 clients, against the bare {base}")
        )  # fmt: skip
    for name in ("two hops", "rouse"):
        found.append(
            Measure(f"{SHARE}{name.replace(' ', '_')}", ratios(samples, MANY, name, "echo", "throughput"),
                    "ratio", better="higher")
        )  # fmt: skip
    return found


def _show_hops(meshed: mesh.Mesh, ours: Target, run: Run) -> None:
    """Traces of one client's requests, when nothing else is asked."""
    began = time.time_ns()
    (sample,) = asyncio.run(interleaved([ours], [ALONE], 1, HOPS_S))[ours.name, ALONE]
    spent = hops.spent(hops.traces_since(meshed.folder / "traces", began, HOP_TRACES))
    steps = hops.medians(spent, sample.p50_ms)
    print(table([[name, figure(ms)] for name, ms in steps], ["where a request's time goes", "ms"]), end="\n\n")
    plot.bars(run.plots / "overhead-hops.svg", "Where the time of one identity goes, one client", "ms", steps)


def _beside(name: str, ours: Target, echo: Target, run: Run) -> list[Measure]:
    """The mesh beside one peer, which runs no longer than this takes: some peers keep the machine busy when idle."""
    rounds, seconds = (2, 0.5) if run.quick else (PEER_ROUNDS, SECONDS)
    try:
        with PEERS[name](Job("identity", TENSORS), run.folder / name) as peer:
            print(f"  {name} and mesh: {rounds} rounds", flush=True)
            samples = asyncio.run(interleaved([echo, peer, ours], [ALONE, MANY], rounds, seconds))
    except (NotInstalled, NotStarted) as error:
        print(f"  {name}: not measured: {error}", flush=True)
        return []
    _show(samples, ["echo", name, "rouse"])
    return [
        Measure(f"throughput_over.{name}", ratios(samples, MANY, "rouse", name, "throughput"), "ratio",
                PEER_BARS.get(name), "higher", note=f"16 clients, against {name}"),
        Measure(f"p50_over.{name}", ratios(samples, ALONE, "rouse", name, "p50_ms"), "ratio",
                note=f"one client, against {name}"),
        Measure(f"{SHARE}{name}", ratios(samples, MANY, name, "echo", "throughput"), "ratio", better="higher"),
    ]  # fmt: skip


SCENARIO = Scenario(
    "overhead", "an identity through the mesh, beside bare grpc.aio servers, MLServer, KServe and Ray Serve", 6, measure
)
