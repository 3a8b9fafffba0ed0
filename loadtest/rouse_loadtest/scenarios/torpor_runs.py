"""The runs behind the scenario torpor-sim: each of Torpor's figures 8 to 14 as the simulator sees it.

Load as the authors' scripts make it (github.com/FCSLab/torpor, evaluation): their sample of functions, their way of
sending, their numbers of functions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rouse_loadtest.report import figure
from rouse_loadtest.traces import torpor_minutes, torpor_rates, windows
from rouse_policy import keep_alive
from rouse_simulator import arrivals, profile
from rouse_simulator.arrivals import Arrivals
from rouse_simulator.profile import Model
from rouse_simulator.results import Results
from rouse_simulator.simulation import Setup, round_robin, simulate
from rouse_simulator.variants import FULL, KEEP_ALIVE, NATIVE, VARIANTS, Variant

PAPER = profile.torpor()
# Only what is on the device: Table 4 without the way between router and functions.
DEVICE_ONLY = PAPER.with_way(0.0)
RESNET = PAPER.model("ResNet-152")
# Loads that are not the authors': what a function is called at least and most, requests a minute (7.3), and a power
# law between them through the two points that the paper gives of its Figure 2.
LOW, HIGH = 5.0, 30.0
EXPONENT = 1.0 + math.log(0.15 / 0.03) / math.log(60.0)
# All functions are warm before the paper measures (7): the first minute is played and not counted.
WARMUP_S = 60.0
# Section 7.4: deadlines of the cluster.
CLUSTER = PAPER.with_deadlines({"vision": 0.150, "language": 0.250})
# Figure 8: requests a minute of each function, and how many functions the authors put on the device.
CONSOLIDATED = ((80, 33), (60, 40), (40, 60), (20, 120), (10, 210))
NATIVE_CONSOLIDATED = 19


@dataclass(frozen=True)
class Length:
    """How long runs are: minutes of arrivals, the first of which warms up; and how many seeds."""

    minutes: int
    seeds: tuple[int, ...]

    @property
    def seconds(self) -> float:
        return self.minutes * 60.0


def sampled(count: int, length: Length, seed: int, times: float = 1.0) -> Arrivals:
    """Functions of the authors' sample, drawn as they draw them: with repetition where there are not enough.

    Args:
        times: what their rates are multiplied by.
    """
    sample = torpor_minutes()
    chosen = np.random.default_rng(seed).choice(len(sample), count, replace=count > len(sample))
    return arrivals.paced((sample[chosen, : length.minutes] * times).tolist(), seed + 1000)


def steady(rates: Sequence[float], length: Length, seed: int) -> Arrivals:
    """Functions at rates that stay, requests a minute, sent as the authors send."""
    return arrivals.paced([[rate] * length.minutes for rate in rates], seed)


def drawn(count: int, length: Length, seed: int) -> Arrivals:
    """Poisson arrivals at rates of the power law."""
    rates = arrivals.power_law_rates(count, LOW, HIGH, EXPONENT, seed)
    return arrivals.poisson(rates, length.seconds, seed + 1000)


def recorded(count: int, length: Length, seed: int) -> Arrivals:
    """Windows of the Azure trace with mean rates in the same range."""
    return arrivals.counted(windows(count, length.minutes, LOW, HIGH, seed), seed + 1000)


def run(
    variant: Variant,
    coming: Arrivals,
    length: Length,
    *,
    nodes: int = 1,
    of: profile.Profile = PAPER,
    models: Sequence[Model] = (),
    seed: int = 0,
) -> Results:
    """Runs a variant and says how it went; with the profile's models in turn where none are named."""
    started = time.monotonic()
    lifespans = None
    if variant is KEEP_ALIVE:
        lifespans = [keep_alive.lifespan(gaps, variant.keep) for gaps in arrivals.gaps(coming)]
    setup = Setup(
        of, variant, models or round_robin(of, coming.count), length.seconds, WARMUP_S, nodes, seed, lifespans
    )  # fmt: skip
    results = simulate(setup, coming)
    host, link = results.swaps()
    p50, p98 = results.latency_s([0.5, 0.98])
    print(
        f"  {variant.name:11} {coming.count:6} functions {len(coming) / length.minutes / coming.count:5.1f}/min  "
        f"compliant {results.compliant_share():6.1%}  load {results.utilisation():4.0%}  swaps {host}+{link}  "
        f"p50 {figure(p50 * 1000)} p98 {figure(p98 * 1000)} ms  [{time.monotonic() - started:.0f} s]",
        flush=True,
    )
    return results


def consolidation(length: Length) -> list[tuple[float, float, float]]:
    """Figure 8: ResNet-152 on one device. For each rate the throughput of late binding over that of native execution
    with as many functions as the authors could place, and the p98 of late binding in seconds. Without the way: with the
    one that Figure 9 asks for, the device had no time for the 44 requests a second that the authors send here."""
    node = replace(DEVICE_ONLY.node.alone(PAPER.node.devices[0]), native_places=NATIVE_CONSOLIDATED)
    one = profile.Profile("one-device", (RESNET,), node)
    found = []
    for rate, count in CONSOLIDATED:
        late = run(FULL, steady([rate] * count, length, 8), length, of=one)
        native = run(NATIVE, steady([rate] * NATIVE_CONSOLIDATED, length, 8), length, of=one)
        found.append((float(rate), late.answered() / native.answered(), late.latency_s([0.98])[0]))
    return found


def balance(length: Length, seed: int) -> dict[str, tuple[list[float], list[float]]]:
    """Figure 9: 40 busy ResNet-152 functions on four devices, 200 requests a minute on average: load over the highest
    and p98 in seconds, by device."""
    rates = np.random.default_rng(seed).choice(torpor_rates(), 40)
    coming = steady((rates * 200.0 / rates.mean()).tolist(), length, seed + 1000)
    found = {}
    for variant in (FULL, NATIVE):
        results = run(variant, coming, length, models=[RESNET] * 40)
        most = max(device.busy_s for device in results.devices)
        tails = [sorted(d.latencies_s)[int(0.98 * len(d.latencies_s))] for d in results.devices]
        found[variant.name] = ([d.busy_s / most for d in results.devices], tails)
    return found


def mix(length: Length) -> dict[str, dict[str, tuple[float, float]]]:
    """Figure 12: DenseNet-201 and Bert-qa, which takes 60% of the memory: p90 and p98 by model, seconds."""
    light, heavy = PAPER.model("DenseNet-201"), PAPER.model("Bert-qa")
    heavies = 70
    lights = round(heavies * heavy.resident_bytes * (0.4 / 0.6) / light.resident_bytes)
    models = [heavy] * heavies + [light] * lights
    coming = sampled(len(models), length, 12)
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name in ("full", "lru"):
        results = run(VARIANTS[name], coming, length, models=models)
        found[name] = {}
        for model in (light, heavy):
            ordered = sorted(latency for f in results.functions if f.model == model.name for latency in f.latencies_s)
            found[name][model.name] = (ordered[int(0.90 * len(ordered))], ordered[int(0.98 * len(ordered))])
    return found


def most_functions(length: Length, variant: Variant, low: int = 400, high: int = 1040, step: int = 10) -> int:
    """The most functions on one node of which 98% keep their objective, by bisection in steps.

    Args:
        low, high: known to be enough, and too many.
    """
    while high - low > step:
        middle = (low + high) // 2 // step * step
        if run(variant, sampled(middle, length, 98), length).compliant_share() >= 0.98:
            low = middle
        else:
            high = middle
    return low


def variances(results: Results) -> list[float]:
    """Figure 14b: for each node the variance of its devices' loads, over the highest of them."""
    nodes: dict[str, list[float]] = {}
    for device in results.devices:
        nodes.setdefault(device.node, []).append(device.busy_s)
    found = []
    for loads in nodes.values():
        top = max(*loads, 1e-9)
        mean = sum(loads) / len(loads) / top
        found.append(sum((load / top - mean) ** 2 for load in loads) / len(loads))
    return found


@dataclass(frozen=True)
class Cost:
    """What serving a million requests takes.

    Args:
        device_hours: of devices that are there, used or not.
        bill: what users pay, in device hours: the time that devices worked for them, and a tenth of their share of a
            device while they sleep in host memory (Torpor, 8); or their share of a device all the time.
    """

    devices: int
    device_hours: float
    bill: float


def costs(results: Results, of: profile.Profile, nodes: int) -> tuple[Cost, Cost]:
    """Late binding as it ran, and early binding of the same functions for the same time."""
    hours = results.seconds / 3600.0
    millions = results.answered() / 1e6
    models = [of.model(f.model) for f in results.functions]
    shares = sum((m.resident_bytes + of.node.runtime_bytes) / of.node.device_bytes for m in models)
    # Bound one by one, they fill devices with a remainder: as many whole ones as a device takes.
    mean_bytes = sum(m.resident_bytes for m in models) / len(models) + of.node.runtime_bytes
    a_device = min(of.node.device_bytes // math.ceil(mean_bytes), of.node.native_places)
    early = math.ceil(len(models) / a_device)
    late = nodes * len(of.node.devices)
    busy = sum(device.busy_s for device in results.devices) / 3600.0
    return (
        Cost(late, late * hours / millions, (busy + 0.1 * shares * hours) / millions),
        Cost(early, early * hours / millions, shares * hours / millions),
    )


def shares(results: Sequence[Results]) -> list[float]:
    return [r.compliant_share() for r in results]
