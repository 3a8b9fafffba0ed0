"""Functions whose weights are ten times one device's memory, under recorded arrivals: late binding against LRU with
FIFO and against early binding, the same requests to each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rouse_loadtest import fleet, mesh, plot, traces
from rouse_loadtest.fleet import Fleet
from rouse_loadtest.report import Measure, figure, table
from rouse_loadtest.scenario import Run, Scenario
from rouse_loadtest.turns import Setting, Turn, show_functions, take_all

FUNCTIONS, LAYERS, TIMES_OVER = 40, 8, 10
ROUNDS, SECONDS, SEED = 2, 45.0, 7
# Torpor gives 80 ms where a swapped ResNet-152 takes 25: about three times. Here two cores do everything.
OBJECTIVE_TIMES = 4.0
# Of what the machine can answer if each request is swapped.
LOAD = 0.5
# Short windows of functions that are not too rare, so that nearly all of them have requests; and the most requests a
# second that these have.
WINDOW_MINUTES, LEAST_RATE, MOST = 5, 2.0, 25.0
# A client waits so many objectives for its answer.
WAITS = 10.0
ASKS = {"ROUSE_NODE_ROUTER_MAX_ACQUIRES": "3"}
POLICIES: Mapping[str, Mapping[str, str]] = {
    "rouse": {
        "ROUSE_NODE_ROUTER_QUEUE_ORDER": "rrc",
        "ROUSE_GPU_SERVER_BINDING": "late",
        "ROUSE_GPU_SERVER_EVICTION_ORDER": "pool",
    },
    "lru_fifo": {
        "ROUSE_NODE_ROUTER_QUEUE_ORDER": "fifo",
        "ROUSE_GPU_SERVER_BINDING": "late",
        "ROUSE_GPU_SERVER_EVICTION_ORDER": "lru",
    },
    "native": {"ROUSE_NODE_ROUTER_QUEUE_ORDER": "fifo", "ROUSE_GPU_SERVER_BINDING": "early"},
}


def measure(run: Run) -> Sequence[Measure]:
    """Sets up once, then gives each policy its turn, round by round."""
    count, seconds, rounds = (10, 6.0, 1) if run.quick else (FUNCTIONS, SECONDS, ROUNDS)
    setting = _set_up(run.folder, count, seconds)
    turns = take_all(run.folder, setting, POLICIES, rounds)
    _show(run, setting, turns)
    return _measures(setting, turns)


def _set_up(folder: Path, count: int, seconds: float) -> Setting:
    """Deploys the functions, with an objective by what a swapped request takes here."""
    device_mib = count * LAYERS * 4 // TIMES_OVER
    flags = ("--device", f"host:gpu0={device_mib}MiB", "--host-memory", f"{count * LAYERS * 4 + 1024}MiB")
    with mesh.running(folder, *flags, env={**ASKS, **POLICIES["rouse"]}) as running:
        cost = fleet.cost(running, folder, LAYERS, 2 * device_mib // (LAYERS * 4))
        objective_ms = cost.objective_ms(OBJECTIVE_TIMES)
        functions = Fleet(tuple(f"f{number:02}" for number in range(count)), LAYERS, objective_ms)
        fleet.deploy(running, folder, functions)
        with fleet.Asker(running, functions) as asker:
            calls = tuple(asker.calls())
    rate = min(LOAD * cost.rate, MOST)
    print(
        f"  {count} functions of {functions.bytes_each >> 20} MiB, one device of {device_mib} MiB; a swapped request "
        f"alone takes {cost.alone_s * 1000:.0f} ms, the objective is {objective_ms} ms; of {cost.rate:.1f} swapped "
        f"requests a second that it can answer {rate:.1f} come",
        flush=True,
    )
    arrivals = traces.sped_up(count, seconds, rate, SEED, WINDOW_MINUTES, LEAST_RATE)
    return Setting(flags, ASKS, functions, calls, arrivals, WAITS * objective_ms / 1000)


def _show(run: Run, setting: Setting, turns: Mapping[str, Sequence[Turn]]) -> None:
    objective_s = setting.functions.objective_ms / 1000
    show_functions(setting, turns)
    medians = [
        (
            name,
            statistics.median(turn.kept() for turn in of),
            statistics.median(turn.throughput() for turn in of),
            statistics.median(turn.p98_s(setting.timeout_s) / objective_s for turn in of),
            statistics.median(turn.moves.swaps for turn in of),
        )
        for name, of in turns.items()
    ]
    head = ["policy", "functions within objective", "answers/s", "p98, objectives", "swaps"]
    print(table([[name, *map(figure, values)] for name, *values in medians], head), end="\n\n")
    for file, title, unit, place in (
        ("functions", f"Functions of {setting.called} within their objective", "functions", 1),
        ("tail", "p98 over all requests", "objectives", 3),
        ("swaps", "Models swapped in while requests came", "swaps", 4),
    ):
        bars = [(median[0], float(median[place])) for median in medians]
        plot.bars(run.plots / f"density-{file}.png", title, unit, bars)


def _measures(setting: Setting, turns: Mapping[str, Sequence[Turn]]) -> list[Measure]:
    count, objective_s = setting.called, setting.functions.objective_ms / 1000
    within = {name: [float(turn.kept()) for turn in of] for name, of in turns.items()}
    most_native = math.nextafter(max(within["native"]), math.inf)
    found = [Measure("functions_total", [float(count)], "functions", better="higher", note="that had requests")]
    found += [
        Measure(f"functions_within_slo.{name}", values, "functions", most_native if name == "rouse" else None, "higher",
                "98% of its requests answered within the objective; more than by early binding")
        for name, values in within.items()
    ]  # fmt: skip
    found += [
        Measure(f"functions_served.{name}", [float(turn.served()) for turn in of], "functions",
                float(count) if name == "rouse" else None, "higher", "at least one request answered")
        for name, of in turns.items()
    ]  # fmt: skip
    found += [
        Measure(f"p98_over_deadline.{name}", [turn.p98_s(setting.timeout_s) / objective_s for turn in of],
                "ratio", note=f"over the objective; what was not answered counts as {WAITS:g}")
        for name, of in turns.items()
    ]  # fmt: skip
    pairs = zip(turns["rouse"], turns["native"], strict=True)
    found.append(
        Measure("throughput_over_native", [ours.throughput() / native.throughput() for ours, native in pairs], "ratio",
                1.0, "higher", "answers a second")
    )  # fmt: skip
    found += [Measure(f"swaps.{name}", [float(t.moves.swaps) for t in of], "swaps") for name, of in turns.items()]
    return found


SCENARIO = Scenario(
    "density",
    "functions ten times as large as the device, by late binding, LRU with FIFO, and early binding",
    8,
    measure,
)
