"""What it costs to run a model's operators in another process: redirected, replayed from a tape, and native, with one
compute thread each on the same device."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rouse_loadtest import plot
from rouse_loadtest.core_models import MODELS, build, is_tiny
from rouse_loadtest.place import Place
from rouse_loadtest.report import Measure, figure, table
from rouse_loadtest.scenario import Run, Scenario

ROUNDS, SECONDS = 9, 3.0
# Over native, of models as they are and of the same graphs at tiny widths, where launching is the cost.
BAR, TINY_BAR = 1.03, 1.15
TAPE_BAR, TINY_TAPE_BAR = 1.00, 0.40
# Requests until a tape is verified.
RECORDED = 3


@dataclass
class Timed:
    """One model: milliseconds a round, medians, of each way to run it."""

    calls: int
    native: list[float] = field(default_factory=list)
    redirected: list[float] = field(default_factory=list)
    synchronous: list[float] = field(default_factory=list)
    tape: list[float] = field(default_factory=list)
    issued: list[float] = field(default_factory=list)  # Until all was sent, of the redirected run.

    def over_native(self, values: Sequence[float]) -> list[float]:
        return [a / b for a, b in zip(values, self.native, strict=True)]


def measure(run: Run) -> Sequence[Measure]:
    import torch

    from rouse_native import redirect

    threads, on = torch.get_num_threads(), run.place.session
    torch.set_num_threads(1)
    try:
        with redirect.spawn_local(threads=1, device=on.device, libraries=on.libraries), torch.inference_mode():
            timed = {name: _time(name, run.quick, run.place) for name in MODELS}
    finally:
        torch.set_num_threads(threads)
    rows = []
    for name, each in timed.items():
        cells = (
            each.calls, statistics.median(each.native), statistics.median(each.redirected),
            statistics.median(each.synchronous), statistics.median(each.tape),
            1e3 * statistics.median(each.issued) / each.calls,
            1e3 * statistics.median(each.redirected) / each.calls,
        )  # fmt: skip
        rows.append([name, *map(figure, cells)])
    header = ["", "operators", "native ms", "redirected ms", "synchronous ms", "tape ms", "client µs/op", "whole µs/op"]
    print(table(rows, header), end="\n\n")
    found = []
    for name, each in timed.items():
        found.append(
            Measure(f"redirected_over_native.{name}", each.over_native(each.redirected), "ratio",
                    TINY_BAR if is_tiny(name) else BAR, note="one compute thread on each side")
        )  # fmt: skip
        found.append(
            Measure(f"synchronous_over_native.{name}", each.over_native(each.synchronous), "ratio",
                    note="waits for every operator")
        )  # fmt: skip
        found.append(
            Measure(f"tape_over_native.{name}", each.over_native(each.tape), "ratio",
                    TINY_TAPE_BAR if is_tiny(name) else TAPE_BAR, note="one message, until the output is here")
        )  # fmt: skip
    plot.bars(
        run.plots / "redirect.svg", "Over native, one compute thread", "ratio",
        [
            (f"{name}, {way}", statistics.median(each.over_native(values)))
            for name, each in timed.items()
            for way, values in (("redirected", each.redirected), ("tape", each.tape))
        ],
    )  # fmt: skip
    return found


def _ways(name: str, place: Place, issued: list[float]) -> dict[str, Callable[[], Any]]:
    """A model's inference in each way, by name in Timed, until its output is in the host's memory. Redirected runs add
    to `issued` the seconds until all was sent. Raises RuntimeError where one gives other numbers than the native."""
    from rouse_loadtest.gpu_exact import agree
    from rouse_native import redirect, tape

    built = build(name)
    there = copy.deepcopy(built.module).to("rouse")
    inputs = {key: value.to("rouse") for key, value in built.inputs.items()}
    here = built.module.to(place.torch)
    given = {key: value.to(place.torch) for key, value in built.inputs.items()}

    def native() -> Any:
        # Where it comes from a GPU, that waits for it.
        return built.result(here(**given)).to("cpu", copy=True)

    def redirected() -> Any:
        began = time.perf_counter()
        output = built.result(there(**inputs))
        issued.append(time.perf_counter() - began)
        return output.cpu()

    def synchronous() -> Any:
        with redirect.blocking():
            return built.result(there(**inputs)).cpu()

    def request(*tensors: Any) -> Any:
        return built.result(there(**dict(zip(inputs, tensors, strict=True))))

    def taped() -> Any:
        replayed = tape.replay(list(inputs.values()), name)
        if replayed.outcome is not tape.Outcome.DONE:
            raise RuntimeError(f"{name}: no tape answers ({replayed.outcome.name}): {tape.infos()}")
        return replayed.outputs[0].cpu()

    for _ in range(RECORDED):
        tape.record(request, list(inputs.values()), name)
    ways = {"native": native, "redirected": redirected, "synchronous": synchronous, "tape": taped}
    for way, function in ways.items():
        if not agree(place, function(), native()):
            raise RuntimeError(f"{name}: the {way} run gave other numbers than the native one")
    return ways


def _time(name: str, quick: bool, place: Place) -> Timed:
    from rouse_native import redirect

    issued: list[float] = []
    ways = _ways(name, place, issued)
    before = redirect.counters()["calls"]
    ways["redirected"]()
    timed = Timed(redirect.counters()["calls"] - before)
    rounds, seconds = (2, 0.3) if quick else (ROUNDS, SECONDS)
    for _ in range(rounds):
        took: dict[str, list[float]] = {way: [] for way in ways}
        issued.clear()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for way, function in ways.items():
                began = time.perf_counter()
                function()
                took[way].append(time.perf_counter() - began)
        for way, each in took.items():
            getattr(timed, way).append(1e3 * statistics.median(each))
        timed.issued.append(1e3 * statistics.median(issued))
    print(f"  {name}: {rounds} rounds of {seconds:.1f} s", flush=True)
    return timed


SCENARIO = Scenario(
    "redirect", "operators redirected to an executor process, beside native PyTorch", 4, measure, anywhere=True
)
