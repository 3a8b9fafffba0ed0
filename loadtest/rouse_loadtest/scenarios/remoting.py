"""One small request to an executor, by a tape over a link and eagerly through the ring, with the share of each step."""

from __future__ import annotations

import asyncio
import random
import statistics
import struct
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rouse_common.errors import FailedPrecondition
from rouse_common.lifecycle import loop_factory
from rouse_common.link import Links
from rouse_contracts import core, device, functions
from rouse_contracts.links import EXECUTE
from rouse_loadtest.report import Measure, figure, table
from rouse_loadtest.scenario import Run, Scenario
from rouse_native.executor import ExecutorClient, ExecutorProcess, ExecutorSettings
from rouse_native.session import Session
from rouse_testkit.wire import Layers, data

ROUNDS, QUICK_ROUNDS = 7, 2
REQUESTS, QUICK_REQUESTS = 500, 50
TIMEOUT_S = 30.0
# A tiny model: 8 times x = tanh(x @ W), where launching is the cost.
LAYERS = Layers(8, 64, 0x5000_0000_0000)
STEPS = ("client", "link", "hand over", "input", "replay", "output")


@dataclass
class Round:
    """Milliseconds of each request of one round."""

    total: list[float] = field(default_factory=list)
    steps: dict[str, list[float]] = field(default_factory=lambda: {step: [] for step in STEPS})
    ring_sync: list[float] = field(default_factory=list)
    ring_request: list[float] = field(default_factory=list)

    @property
    def overhead(self) -> float:
        """Median over requests of what one takes beside its replay."""
        return statistics.median(total - replay for total, replay in zip(self.total, self.steps["replay"], strict=True))


def measure(run: Run) -> Sequence[Measure]:
    """Runs the scenario."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        rounds = runner.run(_measure(run))
    shares = [[step, *_step(rounds, step)] for step in STEPS]
    print(table(shares, ["step of a request by tape", "ms (p50)", "share"]))
    print(
        table(
            [
                ["SYNC through the ring and back", figure(_median([r.ring_sync for r in rounds]))],
                [f"the request eagerly through the ring, {2 * LAYERS.count} operators", _eager(rounds)],
            ],
            ["beside it", "ms (p50)"],
        )
    )
    return [
        Measure(
            "tape_request_overhead_ms", [r.overhead for r in rounds], "ms", 0.5,
            note="request at node-router's link client to result, less the replay itself; p50 a round",
        ),
        Measure("tape_request_ms", [statistics.median(r.total) for r in rounds], "ms", note="the whole request"),
        Measure("ring_round_trip_ms", [statistics.median(r.ring_sync) for r in rounds], "ms", note="SYNC and DONE"),
    ]  # fmt: skip


async def _measure(run: Run) -> list[Round]:
    chance = random.Random(1)
    floats = LAYERS.width * LAYERS.width * LAYERS.count
    image = run.folder / "image"
    image.write_bytes(struct.pack(f"<{floats}f", *(chance.uniform(-0.1, 0.1) for _ in range(floats))))
    rounds, requests = (QUICK_ROUNDS, QUICK_REQUESTS) if run.quick else (ROUNDS, REQUESTS)
    links = Links(64 << 20)
    # A socket's path has 108 bytes at most.
    with tempfile.TemporaryDirectory(prefix="rouse-") as folder:
        settings = ExecutorSettings(run.place.executor, Path(folder), {"capacity-mib": 64}, run.place.program)
        async with ExecutorProcess(settings, links).running() as process:
            await process.serving(TIMEOUT_S)
            session = await _prepare(process.client, Path(folder), image)
            measured = [await _round(process.client, links, session, requests) for _ in range(rounds + 1)]
    await links.close()
    return measured[1:]  # the first one warms up


async def _prepare(client: ExecutorClient, folder: Path, image: Path) -> Session:
    size = LAYERS.count * LAYERS.matrix_bytes
    await client.map_model("v", "at", base=LAYERS.weights[0], size_bytes=size, image=image, timeout_s=TIMEOUT_S)
    await client.open_session("s", folder / "s", TIMEOUT_S, version_id="v", record=True)
    session = await asyncio.to_thread(Session, folder / "s", TIMEOUT_S)

    def record() -> None:
        for message in LAYERS.setup():
            session.send(message, TIMEOUT_S)
        for number in range(2):
            _eager_request(session, number)

    await asyncio.to_thread(record)
    saved = await client.save_tapes("s", folder, TIMEOUT_S)
    (tape,) = saved.tapes
    inputs = [core.TapeTensor(name="x", datatype="FP32", shape=[1, LAYERS.width])]
    await client.load_tapes("v", [core.TapeFile(path=tape.path, inputs=inputs, output_names=["y"])], TIMEOUT_S)
    return session


def _eager_request(session: Session, number: int) -> bytes:
    for message in LAYERS.request(number, bytes(4 * LAYERS.width)):
        session.send(message, TIMEOUT_S)
    result = data(session.receive(TIMEOUT_S))
    session.send(LAYERS.done(), TIMEOUT_S)
    return result


async def _round(client: ExecutorClient, links: Links, session: Session, requests: int) -> Round:
    done = Round()
    for number in range(requests):
        await _by_tape(client, links, done)
        await _link_alone(client, links, done)
        started = time.perf_counter()
        session.sync(number, TIMEOUT_S)
        synced = time.perf_counter()
        _eager_request(session, number)
        done.ring_sync.append(1e3 * (synced - started))
        done.ring_request.append(1e3 * (time.perf_counter() - synced))
    for index, total in enumerate(done.total):
        known = sum(done.steps[step][index] for step in STEPS if step != "hand over")
        done.steps["hand over"].append(max(0.0, total - known))
    return done


def _request(lease: str) -> bytes:
    tensor = functions.Tensor(name="x", datatype="FP32", shape=[1, LAYERS.width], data=bytes(4 * LAYERS.width))
    batch = functions.TensorBatch(tensors=[tensor]).SerializeToString()
    request = device.ExecuteRequest(lease_id=lease, request_id="r", inputs=batch)
    serialised: bytes = request.SerializeToString()
    return serialised


async def _by_tape(client: ExecutorClient, links: Links, done: Round) -> None:
    started = time.perf_counter()
    request = _request("at/1")
    sent = time.perf_counter()
    answer = await links.call(client.address, EXECUTE.encode(), (request,), TIMEOUT_S)
    received = time.perf_counter()
    response = device.ExecuteResponse.FromString(bytes(answer))
    functions.TensorBatch.FromString(response.outputs)
    ended = time.perf_counter()
    done.total.append(1e3 * (ended - started))
    done.steps["client"].append(1e3 * (sent - started + ended - received))
    done.steps["input"].append(response.input_ms)
    done.steps["replay"].append(response.device_ms)
    done.steps["output"].append(response.output_ms)


async def _link_alone(client: ExecutorClient, links: Links, done: Round) -> None:
    """The same message, refused by the executor's I/O thread: a round trip without any work."""
    request = _request("none/1")
    started = time.perf_counter()
    try:
        await links.call(client.address, EXECUTE.encode(), (request,), TIMEOUT_S)
    except FailedPrecondition:
        done.steps["link"].append(1e3 * (time.perf_counter() - started))


def _median(rounds: Sequence[Sequence[float]]) -> float:
    return statistics.median(statistics.median(values) for values in rounds)


def _step(rounds: Sequence[Round], step: str) -> tuple[str, str]:
    value = _median([r.steps[step] for r in rounds])
    return figure(value), f"{100 * value / _median([r.total for r in rounds]):.0f} %"


def _eager(rounds: Sequence[Round]) -> str:
    return figure(_median([r.ring_request for r in rounds]))


SCENARIO = Scenario("remoting", "what a request to an executor costs beside its work", 0.5, measure, anywhere=True)
