"""The runs behind the scenario torpor-sim: each of Torpor's figures 8 to 14 as the simulator sees it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rouse_loadtest.report import figure
from rouse_loadtest.traces import windows
from rouse_simulator import arrivals, profile
from rouse_simulator.arrivals import Arrivals
from rouse_simulator.results import Results
from rouse_simulator.simulation import Setup, round_robin, simulate
from rouse_simulator.variants import FULL, NATIVE, VARIANTS, Variant

PAPER = profile.torpor()
# The paper's range of rates, requests a minute. It does not say how they lie in it; of its Figure 2 it says that 85% of
# all functions are called at most once a minute and 97% at most once a second. A power law through these two points has
# the density rate ** -1.393, and a mean of 12.6 in the range.
LOW, HIGH = 5.0, 30.0
EXPONENT = 1.0 + math.log(0.15 / 0.03) / math.log(60.0)
WARMUP_S = 60.0
# Section 7.4: deadlines of the cluster.
CLUSTER = PAPER.with_deadlines({"vision": 0.150, "language": 0.250})


@dataclass(frozen=True)
class Length:
    """How long runs are: minutes of arrivals, the first of which warms up; and how many seeds."""

    minutes: int
    seeds: tuple[int, ...]

    @property
    def seconds(self) -> float:
        return self.minutes * 60.0


def drawn(count: int, length: Length, seed: int) -> Arrivals:
    """Poisson arrivals at rates of the power law."""
    rates = arrivals.power_law_rates(count, LOW, HIGH, EXPONENT, seed)
    return arrivals.poisson(rates, length.seconds, seed + 1000)


def recorded(count: int, length: Length, seed: int) -> Arrivals:
    """Windows of the Azure trace with mean rates in the same range."""
    return arrivals.counted(windows(count, length.minutes, LOW, HIGH, seed), seed + 1000)


def run(
    variant: Variant, coming: Arrivals, length: Length, *, nodes: int = 1, of: profile.Profile = PAPER, seed: int = 0
) -> Results:
    """Runs a variant with the profile's models in turn, and says how it went."""
    started = time.monotonic()
    setup = Setup(of, variant, round_robin(of, coming.count), length.seconds, WARMUP_S, nodes, seed)
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


def consolidation(rate: float, length: Length, limit_s: float) -> tuple[float, float]:
    """Figure 8: ResNet-152 on one device. The throughput of late binding with the most functions whose p98 is within a
    limit, and that of native execution with as many as fit; both in requests a second."""
    model = PAPER.model("ResNet-152")
    node = PAPER.node.alone(PAPER.node.devices[0])
    one = profile.Profile("one-device", (model,), node)
    native = node.device_bytes // (model.resident_bytes + node.runtime_bytes)
    low, high, best = 0, native * 40, 0.0
    while high - low > max(low // 20, 1):
        middle = (low + high) // 2
        coming = arrivals.poisson([rate] * middle, length.seconds, 8)
        results = simulate(Setup(one, FULL, [model] * middle, length.seconds, WARMUP_S), coming)
        if results.latency_s([0.98])[0] <= limit_s:
            low, best = middle, middle * rate / 60.0
        else:
            high = middle
    base = arrivals.poisson([rate] * native, length.seconds, 8)
    kept = simulate(Setup(one, NATIVE, [model] * native, length.seconds, WARMUP_S), base)
    return best, kept.answered() / kept.seconds


def balance(length: Length) -> dict[str, tuple[list[float], list[float]]]:
    """Figure 9: 40 busy ResNet-152 functions on four devices: load over the highest and p98 in seconds, by device."""
    model = PAPER.model("ResNet-152")
    coming = arrivals.counted(windows(40, length.minutes, 100.0, 400.0, 9), 1009)
    found = {}
    for variant in (FULL, NATIVE):
        results = simulate(Setup(PAPER, variant, [model] * 40, length.seconds, WARMUP_S), coming)
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
    coming = drawn(len(models), length, 12)
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name in ("full", "lru"):
        results = simulate(Setup(PAPER, VARIANTS[name], models, length.seconds, WARMUP_S), coming)
        found[name] = {}
        for model in (light, heavy):
            ordered = sorted(latency for f in results.functions if f.model == model.name for latency in f.latencies_s)
            found[name][model.name] = (ordered[int(0.90 * len(ordered))], ordered[int(0.98 * len(ordered))])
    return found


def most_functions(length: Length, variant: Variant, step: int = 20) -> int:
    """The most functions on one node of which 98% keep their objective, in steps."""
    count = 360
    while count < 1000:
        if run(variant, drawn(count + step, length, 98), length).compliant_share() < 0.98:
            return count
        count += step
    return count


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
    a_device = of.node.device_bytes // math.ceil(sum(m.resident_bytes for m in models) / len(models) + 1e9)
    early = math.ceil(len(models) / a_device)
    late = nodes * len(of.node.devices)
    busy = sum(device.busy_s for device in results.devices) / 3600.0
    return (
        Cost(late, late * hours / millions, (busy + 0.1 * shares * hours) / millions),
        Cost(early, early * hours / millions, shares * hours / millions),
    )


def shares(results: Sequence[Results]) -> list[float]:
    return [r.compliant_share() for r in results]
