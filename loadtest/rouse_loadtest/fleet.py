"""Many functions with weights of their own: written, deployed, asked once each, and their answers kept."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
import numpy as np
from safetensors.numpy import save_file

from rouse_contracts import functions
from rouse_contracts.status import decode_details
from rouse_loadtest.mesh import DEPLOY_S, POLL_S, Mesh, write_function
from rouse_loadtest.playing import INFER, Call
from rouse_loadtest.processes import NotStarted

# A layer's weights are 4 MiB.
WIDTH = 1024
LAYER_BYTES = WIDTH * WIDTH * 4
CODE = """
import time

import torch


class Function:
    def load(self, context):
        layers, self.device_s = int(context.options["layers"]), float(context.options["device_s"])
        with torch.device("meta"):
            self.net = torch.nn.Sequential(*(torch.nn.Linear({width}, {width}, bias=False) for _ in range(layers)))
        context.bind(self.net, "weights.safetensors")

    def predict(self, inputs):
        x = torch.from_numpy(inputs["x"])
        x = self.net(x)
        time.sleep(self.device_s)
        return {{"y": x}}
"""
# So many are deployed at once: most of that is waiting.
AT_ONCE = 3
TIMEOUT_S = 60.0
HEARTBEAT_S = 30.0
# How often each probe is asked alone; twice as often by several clients.
PROBES, CLIENTS = 5, 4
# Probes are asked one at a time: their objective says nothing.
HARDLY_LATE_MS = 60_000


@dataclass(frozen=True)
class Fleet:
    """Functions of one size.

    Args:
        names: of the functions, by number.
        layers: 4 MiB of weights each.
        objective_ms: of each.
        device_s: how long each request keeps its device besides, as one that computes while the host's cores are free.
        instances: of each.
    """

    names: tuple[str, ...]
    layers: int
    objective_ms: int
    device_s: float = 0.0
    instances: int = 1

    @property
    def bytes_each(self) -> int:
        return self.layers * LAYER_BYTES


def deploy(mesh: Mesh, folder: Path, fleet: Fleet) -> None:
    """Writes functions whose weights all differ, and deploys them; an instance of each stays."""
    settings = (
        f"[scaling]\nmin_instances = {fleet.instances}\nmax_instances = {fleet.instances}\nidle_timeout_s = 3600\n"
        f"[resources]\nthreads = 1\n[objective]\nlatency_ms = {fleet.objective_ms}\n"
        f"[options]\nlayers = {fleet.layers}\ndevice_s = {fleet.device_s}\n"
    )

    def one(number: int) -> None:
        name = fleet.names[number]
        here = write_function(
            folder / name, name, CODE.format(width=WIDTH), [f"x FP32 [1, {WIDTH}]"], [f"y FP32 [1, {WIDTH}]"], settings
        )
        random = np.random.default_rng(number)
        # Scaled so that what comes out is about as large as what goes in.
        save_file(
            {
                f"{layer}.weight": random.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(WIDTH**0.5)
                for layer in range(fleet.layers)
            },
            here / "weights.safetensors",
        )
        mesh.client.deploy(here, timeout=DEPLOY_S)
        (here / "weights.safetensors").unlink()

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(one, range(len(fleet.names))))


def ready(mesh: Mesh, fleet: Fleet) -> None:
    """Waits until each function has its instance: after a start of the mesh."""

    def one(name: str) -> None:
        mesh.client.wake(name, timeout=DEPLOY_S)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(one, fleet.names))


class Asker:
    """Asks functions one after the other, while it is open as a context."""

    def __init__(self, mesh: Mesh, fleet: Fleet) -> None:
        self._channel = grpc.insecure_channel(mesh.address)
        self._method = self._channel.unary_unary(INFER, response_deserializer=functions.InferResponse.FromString)
        self.fleet = fleet

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def request(self, number: int) -> bytes:
        message = functions.InferRequest(function=self.fleet.names[number])
        ones = np.linspace(-1, 1, WIDTH, dtype=np.float32)
        message.inputs.add(name="x", datatype="FP32", shape=[1, WIDTH], data=ones.tobytes())
        return message.SerializeToString()

    def ask(self, number: int) -> functions.InferResponse:
        """One answer. Raises grpc.RpcError."""
        answer: functions.InferResponse = self._method(self.request(number), timeout=TIMEOUT_S)
        return answer

    def calls(self) -> list[Call]:
        """What to play: with the answers that the functions give now."""
        found = []
        for number in range(len(self.fleet.names)):
            answer = tuple(tensor.data for tensor in self.ask(number).outputs)
            found.append(Call(self.request(number), answer, self.fleet.objective_ms / 1000))
        return found

    def warm(self, order: Sequence[int]) -> dict[str, int]:
        """Asks each function once, in this order; how many were refused, by reason."""
        refused: dict[str, int] = {}
        for number in order:
            try:
                self.ask(number)
            except grpc.RpcError as error:
                reason = decode_details(error).reason
                refused[reason] = refused.get(reason, 0) + 1
        return refused


@dataclass(frozen=True)
class Asked:
    """One request that was alone in the mesh, seconds: `latency_s` as its client saw it, the rest as the mesh says."""

    latency_s: float
    node_s: float
    queue_s: float
    swap_s: float
    execute_s: float


def alone(asker: Asker, order: Iterable[int]) -> list[Asked]:
    """Asks functions one after the other, as soon as each is answered."""
    found = []
    for number in order:
        began = time.perf_counter()
        took = asker.ask(number).timings
        found.append(
            Asked(
                time.perf_counter() - began, took.total_ms / 1000, took.queue_ms / 1000, took.swap_ms / 1000,
                took.execute_ms / 1000,
            )
        )  # fmt: skip
    return found


@dataclass(frozen=True)
class Cost:
    """What a request costs where functions are asked in turn: swapped in each, if they do not all fit.

    Args:
        alone_s: from the client's request to its answer, with nothing else going on; the median.
        execute_s: the device's part of that.
        rate: answered a second where several clients ask at once: what the machine can do at most.
    """

    alone_s: float
    execute_s: float
    rate: float

    def objective_ms(self, times: float) -> int:
        """So many times what it takes alone, in tens of milliseconds."""
        return 10 * math.ceil(times * self.alone_s * 100)


def cost(mesh: Mesh, folder: Path, layers: int, count: int, device_s: float = 0.0) -> Cost:
    """Asks functions as those that will be measured, one after the other; gone afterwards."""
    fleet = Fleet(tuple(f"probe{number}" for number in range(count)), layers, HARDLY_LATE_MS, device_s)
    deploy(mesh, folder, fleet)
    with Asker(mesh, fleet) as asker:
        asker.warm(range(count))
        found = alone(asker, [*range(count)] * PROBES)
        began = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as threads:
            list(threads.map(asker.ask, [*range(count)] * PROBES * 2))
        rate = count * PROBES * 2 / (time.perf_counter() - began)
    for name in fleet.names:
        mesh.client.delete(name, timeout=DEPLOY_S)
    return Cost(
        statistics.median(one.latency_s for one in found), statistics.median(one.execute_s for one in found), rate
    )


@dataclass(frozen=True)
class Moves:
    """What all devices did since the mesh began."""

    swaps: int
    evictions: int

    def since(self, earlier: Moves) -> Moves:
        return Moves(self.swaps - earlier.swaps, self.evictions - earlier.evictions)


def moves(mesh: Mesh) -> Moves:
    """Counted up to now: a node tells of itself every few seconds. Raises NotStarted where it does so no more."""
    asked, deadline = datetime.now(UTC), time.monotonic() + HEARTBEAT_S
    while time.monotonic() < deadline:
        nodes = mesh.client.status().nodes
        if nodes and all(node.last_heartbeat and node.last_heartbeat > asked for node in nodes):
            devices = [device for node in nodes for device in node.devices]
            return Moves(sum(d.swap_ins for d in devices), sum(d.evictions for d in devices))
        time.sleep(POLL_S)
    raise NotStarted(f"a node has not told of itself for {HEARTBEAT_S:.0f} s")
