"""Two devices and a few hot functions, for all of which each of them has room: how evenly the devices work, and the
tail, by late binding and by early binding.

At the load that decides, the hottest function alone keeps the device that it is bound to busy most of the time, while
both devices together could do twice as much. A light load, at which a bound function hardly ever waits,
says what late binding costs where there is nothing to win.

Each request keeps its device for a while that takes none of the host's cores, as a GPU works: with two devices that
computed on two cores, every service and the sender would wait whenever both of them worked, which early binding avoids
by leaving one of them idle.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rouse_loadtest import fleet, mesh, plot, traces
from rouse_loadtest.fleet import Cost, Fleet
from rouse_loadtest.playing import Call
from rouse_loadtest.report import Measure, figure, table
from rouse_loadtest.scenario import Run, Scenario
from rouse_loadtest.turns import Setting, Turn, show_functions, take_all

FUNCTIONS, LAYERS, DEVICE_S, DEVICES, PROBES = 8, 2, 0.03, 2, 3
SEED = 7
OBJECTIVE_TIMES, WAITS = 4.0, 20.0


@dataclass(frozen=True)
class Level:
    """A load.

    Args:
        suffix: of its measures' names.
        load: of what the devices could answer if they did nothing but work.
        rounds, seconds: how often and how long it is played.
    """

    title: str
    suffix: str
    load: float
    rounds: int
    seconds: float

    def quick(self) -> Level:
        return replace(self, rounds=1, seconds=6.0)


DECIDES, LIGHT = Level("busy", "", 0.45, 3, 25.0), Level("light load", "_light", 0.18, 1, 25.0)
ASKS = {"ROUSE_NODE_ROUTER_MAX_ACQUIRES": str(DEVICES + 2)}
POLICIES: Mapping[str, Mapping[str, str]] = {
    "rouse": {"ROUSE_NODE_ROUTER_QUEUE_ORDER": "rrc", "ROUSE_GPU_SERVER_BINDING": "late"},
    "early": {"ROUSE_NODE_ROUTER_QUEUE_ORDER": "fifo", "ROUSE_GPU_SERVER_BINDING": "early"},
}


def loads(turn: Turn) -> list[float]:
    """Of each device the part of the time that it worked."""
    busy = {f"gpu{number}": 0.0 for number in range(DEVICES)}
    for answer in turn.played.answers:
        busy[answer.device] += answer.execute_s
    return [seconds / turn.played.seconds for seconds in busy.values()]


@dataclass(frozen=True)
class Deployed:
    """What all turns have in common, and what a request costs."""

    flags: tuple[str, ...]
    functions: Fleet
    calls: tuple[Call, ...]
    cost: Cost

    def setting(self, level: Level) -> Setting:
        """The requests of a load."""
        most = DEVICES / self.cost.execute_s
        rate = level.load * most
        arrivals = traces.sped_up(FUNCTIONS, level.seconds, rate, SEED, minutes=480)
        asked = sorted((int((arrivals.functions == n).sum()) for n in range(FUNCTIONS)), reverse=True)
        print(
            f"  {level.title}: of {most:.1f} requests a second that the devices have time for {rate:.1f} come; "
            f"by function: {', '.join(map(str, asked))}",
            flush=True,
        )
        waits_s = WAITS * self.functions.objective_ms / 1000
        return Setting(self.flags, ASKS, self.functions, self.calls, arrivals, waits_s)


def measure(run: Run) -> Sequence[Measure]:
    """Sets up once, then gives each policy its turn at each load, round by round."""
    deployed = _deploy(run.folder)
    found: list[Measure] = []
    # Each turn starts a mesh of its own, which is most of a quick run.
    for level in (DECIDES,) if run.quick else (DECIDES, LIGHT):
        played = level.quick() if run.quick else level
        setting = deployed.setting(played)
        turns = take_all(run.folder, setting, POLICIES, played.rounds)
        show_functions(setting, turns)
        _show(run, level, setting, turns)
        found += _measures(level, setting, turns)
    return found


def _deploy(folder: Path) -> Deployed:
    """Deploys the functions; each device has room for all of them, so that nothing but binding is compared."""
    device_mib = FUNCTIONS * LAYERS * fleet.LAYER_BYTES >> 20
    devices = [flag for number in range(DEVICES) for flag in ("--device", f"host:gpu{number}={device_mib}MiB")]
    flags = (*devices, "--host-memory", "1GiB")
    with mesh.running(folder, *flags, env={**ASKS, **POLICIES["rouse"]}) as running:
        cost = fleet.cost(running, folder, LAYERS, PROBES, DEVICE_S)
        objective_ms = cost.objective_ms(OBJECTIVE_TIMES)
        names = tuple(f"f{number:02}" for number in range(FUNCTIONS))
        # Two instances: a function that has one copy on each device can execute on both at once.
        functions = Fleet(names, LAYERS, objective_ms, DEVICE_S, instances=DEVICES)
        fleet.deploy(running, folder, functions)
        with fleet.Asker(running, functions) as asker:
            calls = tuple(asker.calls())
    print(
        f"  {FUNCTIONS} functions of {functions.bytes_each >> 20} MiB, {DEVICES} devices of {device_mib} MiB; alone a "
        f"request takes {cost.alone_s * 1000:.0f} ms, {cost.execute_s * 1000:.0f} of them its device; the objective is "
        f"{objective_ms} ms",
        flush=True,
    )
    return Deployed(flags, functions, calls, cost)


def _show(run: Run, level: Level, setting: Setting, turns: Mapping[str, Sequence[Turn]]) -> None:
    rows = [
        (f"{name}, gpu{number}", statistics.median(loads(turn)[number] for turn in of))
        for name, of in turns.items()
        for number in range(DEVICES)
    ]
    print(table([[name, f"{load:.1%}"] for name, load in rows], ["device", "works"]), end="\n\n")
    title = f"Part of the time that each device works, {level.title}"
    plot.bars(run.plots / f"balance-load{level.suffix}.png", title, "", rows)
    tails = [(name, statistics.median(t.p98_s(setting.timeout_s) for t in of) * 1000) for name, of in turns.items()]
    plot.bars(run.plots / f"balance-tail{level.suffix}.png", f"p98 over all requests, {level.title}", "ms", tails)
    print(table([[name, figure(ms)] for name, ms in tails], ["policy", "p98 ms"]), end="\n\n")


def _measures(level: Level, setting: Setting, turns: Mapping[str, Sequence[Turn]]) -> list[Measure]:
    found, end = [], level.suffix
    for name, of in turns.items():
        found += [
            Measure(f"load_variance{end}.{name}", [statistics.pvariance(loads(turn)) for turn in of], "",
                    note="of the part of the time that each device works"),
            Measure(f"least_over_most_load{end}.{name}", [min(loads(turn)) / max(loads(turn)) for turn in of], "ratio",
                    better="higher"),
            Measure(f"p98_ms{end}.{name}", [turn.p98_s(setting.timeout_s) * 1000 for turn in of], "ms"),
            Measure(f"functions_within_slo{end}.{name}", [float(turn.kept()) for turn in of], "functions",
                    better="higher", note=f"of {setting.called}"),
        ]  # fmt: skip
    pairs = list(zip(turns["rouse"], turns["early"], strict=True))
    # Where there is nothing to win it is shown what it costs.
    bar = 1.0 if level is DECIDES else None
    return [
        *found,
        Measure(f"load_variance_over_early{end}", [statistics.pvariance(loads(ours)) / max(
                statistics.pvariance(loads(other)), 1e-9) for ours, other in pairs], "ratio", bar),
        Measure(f"p98_over_early{end}", [ours.p98_s(setting.timeout_s) / other.p98_s(setting.timeout_s)
                for ours, other in pairs], "ratio", bar),
    ]  # fmt: skip


SCENARIO = Scenario(
    "balance", "two devices and eight hot functions: load of the devices and tail, late and early", 6, measure
)
