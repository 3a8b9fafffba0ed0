"""What functions cost a node while they sleep and their tapes answer, beside what an instance of one costs."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil

import rouse
from rouse_loadtest import mesh
from rouse_loadtest.report import Measure, figure, table
from rouse_loadtest.resident import Resident, resident, settled
from rouse_loadtest.scenario import Run, Scenario

# 1 MiB of weights a function.
WIDTH = 512
SIZES = (100, 500)
AWAKE = 20
PREPARED_AT_ONCE = 4
TAPE_S = 120.0
POLL_S = 0.2
CALLED = 50
FUNCTION = f"""
import torch

class Function:
    def load(self, context):
        self.layer = torch.nn.Linear({WIDTH}, {WIDTH}, bias=False, device="meta")
        context.bind(self.layer, "weights.safetensors")

    def predict(self, inputs):
        return {{"y": self.layer(torch.from_numpy(inputs["x"]))}}
"""
SETTINGS = 'execution = "rouse"\n'
X = np.linspace(-1, 1, WIDTH, dtype=np.float32).reshape(1, WIDTH)


class NotAsleep(Exception):
    """A function that was to sleep and did not; the text says which."""


def name_of(number: int) -> str:
    return f"f{number:04d}"


class Functions:
    """Functions of one layer, each with weights of its own, by number."""

    def __init__(self, meshed: mesh.Mesh, folder: Path) -> None:
        self._mesh, self._folder, self._local = meshed, folder, threading.local()
        self.expected: dict[int, np.ndarray] = {}

    def prepare(self, numbers: Iterable[int]) -> None:
        """Deploys functions, calls each until the node has its tape, and lets its instance go."""
        with ThreadPoolExecutor(PREPARED_AT_ONCE) as threads:
            for count, _ in enumerate(threads.map(self._prepare, numbers), 1):
                if count % 25 == 0:
                    print(f"  {count} more functions sleep", flush=True)

    def _client(self) -> rouse.Client:
        if not hasattr(self._local, "client"):
            self._local.client = rouse.Client(self._mesh.address)
        client: rouse.Client = self._local.client
        return client

    def _prepare(self, number: int) -> None:
        import torch
        from safetensors.torch import save_file

        client, name, folder = self._client(), name_of(number), self._folder / name_of(number)
        mesh.write_function(folder, name, FUNCTION, [f"x FP32 [-1, {WIDTH}]"], [f"y FP32 [-1, {WIDTH}]"])
        manifest = folder / "rouse.toml"
        manifest.write_text(SETTINGS + manifest.read_text())
        weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(number))
        save_file({"weight": weight}, str(folder / "weights.safetensors"))
        client.deploy(folder, timeout=mesh.DEPLOY_S)
        until = time.monotonic() + TAPE_S
        while not any(row.tapes for row in client.describe(name).residency):
            if time.monotonic() > until:
                raise NotAsleep(f"function {name} has no tape after {TAPE_S:.0f} s")
            self.expected[number] = client.infer(name, {"x": X}, timeout=mesh.DEPLOY_S)["y"]
            time.sleep(POLL_S)
        client.sleep(name)

    def call(self, numbers: Iterable[int]) -> list[float]:
        """Calls functions that sleep; how long each took, in milliseconds. Raises NotAsleep where one was woken, or
        answered with other bits than its instance."""
        client, took = self._mesh.client, []
        for number in numbers:
            name = name_of(number)
            before = len(client.describe(name).instances)
            began = time.perf_counter()
            y = client.infer(name, {"x": X}, timeout=60)["y"]
            took.append((time.perf_counter() - began) * 1000)
            if len(client.describe(name).instances) != before:
                raise NotAsleep(f"function {name} was woken by its request")
            if not np.array_equal(y, self.expected[number]):
                raise NotAsleep(f"function {name} answered with other bits than its instance")
        return took


def measure(run: Run) -> Sequence[Measure]:
    """Everything, and what it printed on the way."""
    sizes, awake = ((4, 12), 2) if run.quick else (SIZES, AWAKE)
    flags = ("--executors", "--device", "host:gpu0=256MiB", "--host-memory", "1536MiB")
    with mesh.running(run.folder, *flags) as meshed:
        functions, family = Functions(meshed, run.folder), psutil.Process(meshed.process.pid)
        # The first brings the template's process, and what every function of its kind shares.
        functions.prepare([0])
        first = _without_instances(meshed, family)
        found, done = {1: first}, 1
        took: dict[int, list[float]] = {}
        for size in sizes:
            functions.prepare(range(done, size))
            done = size
            found[size] = settled(family, first.processes)
            took[size] = functions.call(random.Random(size).sample(range(size), min(size, CALLED)))
        with_awake = _awake(meshed, family, awake)
    _show(found, with_awake, awake)
    after = settled_cost(found[sizes[-1]], with_awake, awake)
    measures = [
        Measure("instance_mb", [after], "MB", note=f"{awake} instances of these functions, without shared memory"),
    ]
    for before, size in itertools.pairwise(sorted(found)):
        each = (found[size].own_mb - found[before].own_mb) / (size - before)
        note = f"{size} sleeping functions against {before}: pages of all of a node's processes but the executor"
        measures += [
            Measure(f"asleep_kb.{size}", [each * 1000], "kB", note=note),
            Measure(f"asleep_over_instance.{size}", [each / after], "ratio", 0.05, note=note),
            Measure(f"asleep_shared_mb.{size}", [found[size].shared_mb], "MB", note="files of shared memory"),
            Measure(f"asleep_node_mb.{size}", [found[size].own_mb], "MB", note="a node's processes, no instance"),
            Measure(f"asleep_request_ms.{size}", took[size], "ms", note="a request that a tape answers, swap included"),
        ]
    return measures


def settled_cost(asleep: Resident, with_awake: Resident, awake: int) -> float:
    """What an instance adds to a node, in MB."""
    return (with_awake.own_mb - asleep.own_mb) / awake


def _without_instances(meshed: mesh.Mesh, family: psutil.Process) -> Resident:
    """The node once no function has an instance. Raises NotAsleep."""
    until = time.monotonic() + TAPE_S
    client = meshed.client
    while any(i.state != "ENDED" for f in client.functions() for i in client.describe(f.name).instances):
        if time.monotonic() > until:
            raise NotAsleep(f"a function has an instance after {TAPE_S:.0f} s")
        time.sleep(POLL_S)
    return resident(family)


def _awake(meshed: mesh.Mesh, family: psutil.Process, count: int) -> Resident:
    """The node with instances of so many functions, each called once."""
    for number in range(count):
        meshed.client.wake(name_of(number), timeout=mesh.DEPLOY_S)
        meshed.client.infer(name_of(number), {"x": X}, timeout=mesh.DEPLOY_S)
    return resident(family)


def _show(found: dict[int, Resident], with_awake: Resident, awake: int) -> None:
    largest = max(found)
    rows = [_row(f"{size} asleep", each) for size, each in sorted(found.items())]
    rows.append(_row(f"{largest - awake} asleep, {awake} with an instance", with_awake))
    print(table(rows, ["functions", "processes", "their MB", "shared MB", "executor MB"]))


def _row(name: str, found: Resident) -> list[str]:
    return [name, str(found.processes), figure(found.own_mb), figure(found.shared_mb), figure(found.executor_mb)]


SCENARIO = Scenario("asleep", "memory of a node with 100 and 500 sleeping functions", 25, measure)
