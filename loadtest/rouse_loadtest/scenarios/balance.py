"""Two devices and a few hot functions, for all of which each of them has room: how evenly the devices work, and the
tail, by late binding and by early binding."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rouse_loadtest import fleet, mesh, plot, traces
from rouse_loadtest.fleet import Fleet
from rouse_loadtest.report import Measure, figure, table
from rouse_loadtest.scenario import Run, Scenario
from rouse_loadtest.turns import Setting, Turn, show_functions, take_all

FUNCTIONS, LAYERS, REPEATS, DEVICES, PROBES = 8, 2, 40, 2, 3
ROUNDS, SECONDS, SEED = 2, 40.0, 7
OBJECTIVE_TIMES, WAITS = 4.0, 20.0
# Of what the machine can answer with both devices at work.
LOAD = 0.4
ASKS = {"ROUSE_NODE_ROUTER_MAX_ACQUIRES": str(DEVICES + 2)}
POLICIES: Mapping[str, Mapping[str, str]] = {
    "rouse": {"ROUSE_NODE_ROUTER_QUEUE_ORDER": "rrc", "ROUSE_GPU_SERVER_BINDING": "late"},
    "early": {"ROUSE_NODE_ROUTER_QUEUE_ORDER": "fifo", "ROUSE_GPU_SERVER_BINDING": "early"},
}


def loads(turn: Turn) -> list[float]:
    """Of each device the part of the time that it computed."""
    busy = {f"gpu{number}": 0.0 for number in range(DEVICES)}
    for answer in turn.played.answers:
        busy[answer.device] += answer.execute_s
    return [seconds / turn.played.seconds for seconds in busy.values()]


def measure(run: Run) -> Sequence[Measure]:
    """Sets up once, then gives each policy its turn, round by round."""
    seconds, rounds = (6.0, 1) if run.quick else (SECONDS, ROUNDS)
    setting = _set_up(run.folder, seconds)
    turns = take_all(run.folder, setting, POLICIES, rounds)
    show_functions(setting, turns)
    rows = []
    for name, of in turns.items():
        for number in range(DEVICES):
            load = statistics.median(loads(turn)[number] for turn in of)
            rows.append((f"{name}, gpu{number}", load))
    print(table([[name, f"{load:.1%}"] for name, load in rows], ["device", "computes"]), end="\n\n")
    plot.bars(run.plots / "balance-load.png", "Part of the time that each device computes", "", rows)
    tails = [(name, statistics.median(t.p98_s(setting.timeout_s) for t in of) * 1000) for name, of in turns.items()]
    plot.bars(run.plots / "balance-tail.png", "p98 over all requests", "ms", tails)
    print(table([[name, figure(ms)] for name, ms in tails], ["policy", "p98 ms"]), end="\n\n")
    return _measures(setting, turns)


def _set_up(folder: Path, seconds: float) -> Setting:
    """Deploys the functions; each device has room for all of them, so that nothing but binding is compared."""
    device_mib = FUNCTIONS * LAYERS * fleet.LAYER_BYTES >> 20
    devices = [flag for number in range(DEVICES) for flag in ("--device", f"host:gpu{number}={device_mib}MiB")]
    flags = (*devices, "--host-memory", "1GiB")
    with mesh.running(folder, *flags, env={**ASKS, **POLICIES["rouse"]}) as running:
        cost = fleet.cost(running, folder, LAYERS, PROBES, REPEATS)
        objective_ms = cost.objective_ms(OBJECTIVE_TIMES)
        names = tuple(f"f{number:02}" for number in range(FUNCTIONS))
        # Two instances: a function that has one copy on each device can execute on both at once.
        functions = Fleet(names, LAYERS, objective_ms, REPEATS, instances=DEVICES)
        fleet.deploy(running, folder, functions)
        with fleet.Asker(running, functions) as asker:
            calls = tuple(asker.calls())
    rate = LOAD * cost.rate
    arrivals = traces.sped_up(FUNCTIONS, seconds, rate, SEED, minutes=480)
    asked = sorted((int((arrivals.functions == n).sum()) for n in range(FUNCTIONS)), reverse=True)
    print(
        f"  {FUNCTIONS} functions of {functions.bytes_each >> 20} MiB, {DEVICES} devices of {device_mib} MiB; alone a "
        f"request takes {cost.alone_s * 1000:.0f} ms, the objective is {objective_ms} ms; of {cost.rate:.1f} "
        f"requests a second that it can answer {rate:.1f} come; by function: {', '.join(map(str, asked))}",
        flush=True,
    )
    return Setting(flags, ASKS, functions, calls, arrivals, WAITS * objective_ms / 1000)


def _measures(setting: Setting, turns: Mapping[str, Sequence[Turn]]) -> list[Measure]:
    found = []
    for name, of in turns.items():
        found += [
            Measure(f"load_variance.{name}", [statistics.pvariance(loads(turn)) for turn in of], "",
                    note="of the part of the time that each device computes"),
            Measure(f"least_over_most_load.{name}", [min(loads(turn)) / max(loads(turn)) for turn in of], "ratio",
                    better="higher"),
            Measure(f"p98_ms.{name}", [turn.p98_s(setting.timeout_s) * 1000 for turn in of], "ms"),
            Measure(f"functions_within_slo.{name}", [float(turn.kept()) for turn in of], "functions",
                    better="higher", note=f"of {setting.called}"),
        ]  # fmt: skip
    pairs = list(zip(turns["rouse"], turns["early"], strict=True))
    return [
        *found,
        Measure("load_variance_over_early", [statistics.pvariance(loads(ours)) / max(statistics.pvariance(loads(other)),
                1e-9) for ours, other in pairs], "ratio", 1.0),
        Measure("p98_over_early", [ours.p98_s(setting.timeout_s) / other.p98_s(setting.timeout_s)
                for ours, other in pairs], "ratio", 1.0),
    ]  # fmt: skip


SCENARIO = Scenario(
    "balance", "two devices and eight hot functions: load of the devices and tail, late and early", 5, measure
)
