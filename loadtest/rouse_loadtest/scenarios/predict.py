"""The simulator against a live run: the same recorded arrivals, played to a mesh and to a simulated node with this
machine's costs and the same policies, with one device and with two."""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from rouse_common.config import load
from rouse_gpu_server.config import GpuServerConfig
from rouse_loadtest import calibration, fleet, mesh, plot, traces
from rouse_loadtest.calibration import Stretch
from rouse_loadtest.fleet import Asked, Asker, Fleet
from rouse_loadtest.playing import Played, play
from rouse_loadtest.report import Measure, figure, table
from rouse_loadtest.scenario import Run, Scenario
from rouse_loadtest.tallies import Tally, compliant, together
from rouse_node_router.config import NodeRouterConfig
from rouse_simulator import measured, pooled
from rouse_simulator.arrivals import Arrivals
from rouse_simulator.measured import Machine
from rouse_simulator.results import Results

FUNCTIONS, LAYERS, FIT = 12, 8, 4
# The run that is predicted goes in parts, and stretches that costs are measured by before, between and after them: what
# else the machine does is in both. It is played in rounds, the same arrivals each time: of one round a single moment in
# which the machine stands still makes the slowest 2% of the requests.
ROUNDS, PARTS, SECONDS, BETWEEN_S, SEED, OTHER_SEED = 5, 4, 15.0, 8.0, 11, 100
# The rate is this part of the swapped requests a second that the machine can answer with one device.
LOAD, OBJECTIVE_TIMES, WAITS = 0.3, 4.0, 10.0
# How often every function is asked alone, swapped in, and two functions in turn that stay.
ROUNDS_ALONE, STAYING_ALONE = 2, 15
# Costs are drawn: a prediction is the median of the rounds of as many runs.
RUNS = 3
BAR = 0.15
NAMES = ("p50", "p98", "swaps", "compliance")
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)


@dataclass(frozen=True)
class Figures:
    """What is compared: seconds, counts, and the part of the functions that kept their objective."""

    p50: float
    p98: float
    swaps: float
    compliance: float
    in_time: float
    quantiles_s: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """What is played: rounds of the parts that are predicted; before each part, and last of all, another stretch.

    Args:
        parts: of a round, the same in each.
        between: the stretches by which costs are measured; each is another one.
    """

    rounds: int
    parts: Sequence[Arrivals]
    between: Sequence[Arrivals]

    @classmethod
    def drawn(cls, rate: float, rounds: int, parts: int, seconds: float, between_s: float) -> Plan:
        """Out of the trace, at so many requests a second; parts and stretches between have so many seconds."""

        def stretch(length_s: float, seed: int) -> Arrivals:
            return traces.sped_up(FUNCTIONS, length_s, rate, seed, minutes=60)

        return cls(
            rounds,
            [stretch(seconds, SEED + number) for number in range(parts)],
            [stretch(between_s, OTHER_SEED + number) for number in range(rounds * parts + 1)],
        )


@dataclass(frozen=True)
class Setting:
    """What both are given."""

    devices: Mapping[str, int]
    env: Mapping[str, str]
    functions: Fleet
    timeout_s: float

    def simulated(self, machine: Machine, plan: Plan, seed: int) -> list[Figures]:
        """The rounds of one run, after a stretch by which the node gets to know the functions."""
        gpu_server = load(GpuServerConfig, "gpu-server", [], self.env)
        setup = pooled.Setup(
            machine, self.devices, self.functions.objective_ms / 1000, self.timeout_s,
            load(NodeRouterConfig, "node-router", [], self.env).queueing,
            gpu_server.policy, gpu_server.heaviness, seed,
        )  # fmt: skip
        warm, weighed = list(range(len(self.functions.names))), pooled.Weighed()
        pooled.simulate(setup, plan.between[0], warm, weighed)
        seeds = itertools.count(seed * plan.rounds * len(plan.parts))

        def simulated(part: Arrivals) -> Results:
            return pooled.simulate(replace(setup, seed=next(seeds)), part, warm, weighed)

        return [_simulated([simulated(part) for part in plan.parts]) for _ in range(plan.rounds)]


@dataclass(frozen=True)
class Compared:
    """One number of devices: what was measured and what was predicted, the figures of each round, and the profile."""

    setting: Setting
    machine: Machine
    rounds: Sequence[Figures]
    simulated: Sequence[Figures]

    @property
    def measured(self) -> Figures:
        return _median(self.rounds)

    @property
    def predicted(self) -> Figures:
        return _median(self.simulated)

    def ratio(self, name: str) -> float:
        """Predicted over measured; where nothing was measured 1 if nothing was predicted either."""
        predicted, found = getattr(self.predicted, name), getattr(self.measured, name)
        return predicted / found if found else 1.0 if not predicted else math.inf


def measure(run: Run) -> Sequence[Measure]:
    """With one device, then with two."""
    device_bytes = FIT * LAYERS * fleet.LAYER_BYTES
    compared, functions, plan = [], None, None
    for count in (1, 2):
        devices = {f"gpu{number}": device_bytes for number in range(count)}
        env = {"ROUSE_NODE_ROUTER_QUEUE_ORDER": "rrc", "ROUSE_NODE_ROUTER_MAX_ACQUIRES": str(count + 2)}
        flags = [flag for name in devices for flag in ("--device", f"host:{name}={device_bytes >> 20}MiB")]
        with mesh.running(run.folder, *flags, "--host-memory", "2GiB", env=env) as running:
            if functions is None or plan is None:
                functions, rate = _deploy(running, run.folder)
                sizes = (1, 1, 8.0, 6.0) if run.quick else (ROUNDS, PARTS, SECONDS, BETWEEN_S)
                plan = Plan.drawn(rate, *sizes)
            fleet.ready(running, functions)
            setting = Setting(devices, env, functions, WAITS * functions.objective_ms / 1000)
            compared.append(_compare(running, setting, plan))
        measured.save(run.plots / f"predict-{count}.profile.json", compared[-1].machine)
        _say(compared[-1])
    _show(run, compared)
    return _measures(compared)


def _deploy(running: mesh.Mesh, folder: Path) -> tuple[Fleet, float]:
    """Functions with an objective by what a swapped request takes here, and the rate to play."""
    cost = fleet.cost(running, folder, LAYERS, 2 * FIT)
    objective_ms, rate = cost.objective_ms(OBJECTIVE_TIMES), LOAD * cost.rate
    functions = Fleet(tuple(f"f{number:02}" for number in range(FUNCTIONS)), LAYERS, objective_ms)
    fleet.deploy(running, folder, functions)
    print(
        f"  {FUNCTIONS} functions of {functions.bytes_each >> 20} MiB, {FIT} of them fit on a device; swapped alone a "
        f"request takes {cost.alone_s * 1000:.0f} ms, the objective is {objective_ms} ms; of {cost.rate:.1f} swapped "
        f"requests a second that it can answer {rate:.1f} come",
        flush=True,
    )
    return functions, rate


def _compare(running: mesh.Mesh, setting: Setting, plan: Plan) -> Compared:
    """Plays the rounds and the stretches between, and predicts the rounds by what the stretches cost."""
    functions = setting.functions
    stretches: list[Stretch] = []
    rounds: list[Figures] = []
    with Asker(running, functions) as asker:
        calls = asker.calls()

        def played(arrivals: Arrivals) -> tuple[Played, Stretch]:
            asker.warm(range(FUNCTIONS))
            done = asyncio.run(play(running.address, calls, arrivals, setting.timeout_s))
            return done, Stretch(done.began, datetime.now(UTC), done.answers)

        alone = _alone(asker)
        for _ in range(plan.rounds):
            parts = []
            for part in plan.parts:
                stretches.append(played(plan.between[len(stretches)])[1])
                parts.append(played(part))
            rounds.append(_measured(parts, running))
            _say_round(len(rounds), rounds[-1], [one for one, _ in parts])
        stretches.append(played(plan.between[-1])[1])
        alone += _alone(asker)
    machine = calibration.machine(
        f"{len(setting.devices)} device(s)", functions.bytes_each, alone, stretches, _log(running)
    )
    simulated = [figures for seed in range(RUNS) for figures in setting.simulated(machine, plan, seed)]
    return Compared(setting, machine, rounds, simulated)


def _log(running: mesh.Mesh) -> list[str]:
    return (running.folder / "logs" / "rouse.log").read_text(errors="replace").splitlines()


def _alone(asker: Asker) -> list[Asked]:
    last = len(asker.fleet.names) - 1
    return fleet.alone(asker, [*[*range(last + 1)] * ROUNDS_ALONE, *[last - 1, last] * STAYING_ALONE])


def _measured(parts: Sequence[tuple[Played, Stretch]], running: mesh.Mesh) -> Figures:
    """A round of the mesh."""
    swaps = len(calibration.logged(calibration.SWAPPED_IN, _log(running), [stretch for _, stretch in parts]))
    tallies = [together(tallies) for tallies in zip(*(played.tallies for played, _ in parts), strict=True)]
    return _figures(tallies, swaps)


def _simulated(parts: Sequence[Results]) -> Figures:
    """A round of the simulated node, counted as one of the mesh is."""
    tallies = []
    for functions in zip(*(part.functions for part in parts), strict=True):
        tally = Tally(functions[0].deadline_s)
        for function in functions:
            for latency in function.latencies_s:
                tally.answered(float(latency))
            for _ in range(function.arrived - len(function.latencies_s)):
                tally.failed("DEADLINE_EXCEEDED")
        tallies.append(tally)
    return _figures(tallies, sum(part.swaps()[0] for part in parts))


def _figures(tallies: Sequence[Tally], swaps: int) -> Figures:
    whole = together(tallies)
    return Figures(
        whole.quantile_s(0.5), whole.quantile_s(0.98), float(swaps), compliant(tallies) / len(tallies),
        whole.share_in_time, tuple(whole.quantile_s(q) for q in QUANTILES),
    )  # fmt: skip


def _median(rounds: Sequence[Figures]) -> Figures:
    p50, p98, swaps, compliance, in_time = (
        statistics.median(getattr(one, name) for one in rounds) for name in (*NAMES, "in_time")
    )
    quantiles = np.median([one.quantiles_s for one in rounds], axis=0)
    return Figures(p50, p98, swaps, compliance, in_time, tuple(float(q) for q in quantiles))


def _say_round(number: int, figures: Figures, parts: Sequence[Played]) -> None:
    late_ms = max(part.sender.quantile_s(0.99) for part in parts) * 1000
    print(
        f"  round {number}: p50 {figure(figures.p50 * 1000)} ms, p98 {figure(figures.p98 * 1000)} ms, "
        f"{figures.swaps:.0f} swaps; the sender was {late_ms:.1f} ms late (p99 of its worst part)",
        flush=True,
    )


def _say(one: Compared) -> None:
    steps = ", ".join(
        f"{step.removesuffix('_ms').replace('_', ' ')} "
        + " | ".join(figure(statistics.median(level)) for level in getattr(one.machine, step))
        for step in measured.STEPS
    )
    print(
        f"  {len(one.setting.devices)} device(s), under load: {steps} ms (medians; beside 0 | 1 | … other requests)",
        flush=True,
    )


def _show(run: Run, compared: Sequence[Compared]) -> None:
    rows = []
    for one in compared:
        for name, scale, unit in (
            ("p50", 1000, " ms"), ("p98", 1000, " ms"), ("swaps", 1, ""), ("compliance", 100, "% of functions"),
            ("in_time", 100, "% of requests"),
        ):  # fmt: skip
            found, guessed = getattr(one.measured, name) * scale, getattr(one.predicted, name) * scale
            error = f"{one.ratio(name) - 1:+.1%}"
            rows.append([f"{name}, {len(one.setting.devices)} device(s)", figure(found) + unit, figure(guessed), error])
        series = {
            kind: [(q, s * 1000) for q, s in zip(QUANTILES, figures.quantiles_s, strict=True)]
            for kind, figures in (("measured", one.measured), ("predicted", one.predicted))
        }
        plot.lines(
            run.plots / f"predict-{len(one.setting.devices)}.png", f"Latency, {len(one.setting.devices)} device(s)",
            "quantile", "ms", series,
        )  # fmt: skip
    print(table(rows, ["", "measured", "predicted", "error"]), end="\n\n")


def _measures(compared: Sequence[Compared]) -> list[Measure]:
    found = [
        Measure(f"predicted_over_measured.{name}", [one.ratio(name) for one in compared], "ratio", better="higher",
                note="with one device, and with two")
        for name in NAMES
    ]  # fmt: skip
    for name in NAMES:
        found += [
            Measure(f"prediction_error.{name}.{len(one.setting.devices)}", [abs(one.ratio(name) - 1)], "ratio",
                    BAR if name == "p98" else None, note=f"{len(one.setting.devices)} device(s)")
            for one in compared
        ]  # fmt: skip
    return found


SCENARIO = Scenario("predict", "the simulator against a live run of this machine, one device and two", 18, measure)
