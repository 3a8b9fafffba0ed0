"""Torpor's Figures 8 to 14 in the simulator, and past them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rouse_loadtest import plot
from rouse_loadtest.report import Measure, figure
from rouse_loadtest.scenario import Run, Scenario
from rouse_loadtest.scenarios import torpor_runs as runs
from rouse_loadtest.scenarios.torpor_runs import CLUSTER, Length, run
from rouse_simulator.variants import FULL, KEEP_ALIVE, LATE_LAST, NATIVE, NON_SWAP, SIMPLE_SWAP, VARIANTS

ABLATIONS = ("full", "fifo", "random", "lru", "block")
Row = tuple[str, str, str, str]


def _measure(how: Run) -> Sequence[Measure]:
    length = Length(4, (1,)) if how.quick else Length(11, (1, 2, 3))
    measures: list[Measure] = []
    rows: list[Row] = []
    for part in (_one_device, _four_devices, _node, _ablations, _mix, _cluster, _beyond):
        found, told = part(how, length)
        measures += found
        rows += told
    for title, paper, ours, why in rows:
        print(f"Figure {title}\n  paper:     {paper}\n  simulated: {ours}\n  why:       {why}")
    return measures


def _one_device(how: Run, length: Length) -> tuple[list[Measure], list[Row]]:
    print("Figure 8: ResNet-152 on one device, late binding against native", flush=True)
    rates = (10.0, 80.0) if how.quick else (10.0, 20.0, 40.0, 80.0)
    short = Length(min(length.minutes, 5), (1,))
    series: dict[str, list[tuple[float, float]]] = {}
    for name, limit_s in (("p98 within 50 ms", 0.050), ("p98 within 1 s", 1.0)):
        for rate in rates:
            late, native = runs.consolidation(rate, short, limit_s)
            series.setdefault(name, []).append((rate, late / native))
            print(f"  {rate:g}/min, {name}: {late:.1f}/s against {native:.1f}/s", flush=True)
    plot.lines(how.plots / "torpor-fig08.svg", "Throughput over native", "requests a minute a function", "", series)
    ratios = [points[0][1] for points in series.values()]
    measures = [
        Measure("throughput_over_native_10rpm.p98_50ms", [ratios[0]], "ratio", None, "higher"),
        Measure("throughput_over_native_10rpm.p98_1s", [ratios[1]], "ratio", None, "higher"),
    ]
    text = f"at 10/min {ratios[0]:.1f}x with p98 within 50 ms, {ratios[1]:.1f}x within 1 s"
    why = "10x is 80% load at 25 ms a request: Poisson arrivals wait there; the paper's arrivals are not described"
    return measures, [("8 throughput over native", "over 10x at 10/min, tail < 50 ms", text, why)]


def _four_devices(how: Run, length: Length) -> tuple[list[Measure], list[Row]]:
    print("Figure 9: 40 busy functions on four devices", flush=True)
    found = runs.balance(length)
    told = []
    for name, (loads, tails) in found.items():
        told.append(f"{name}: least/most load {min(loads):.2f}, p98 {figure(max(tails) * 1000)} ms")
        print("  " + told[-1], flush=True)
    late, native = max(found["full"][1]), max(found["native"][1])
    measures = [
        Measure("balance_p98_ms.full", [late * 1000], "ms", None, "lower"),
        Measure("balance_p98_ms.native", [native * 1000], "ms", None, "lower"),
    ]
    why = "recorded windows of 100 to 400 a minute; the paper's own trace is not published"
    return measures, [("9 balance", "tail 35 ms; native seconds", "; ".join(told), why)]


def _node(how: Run, length: Length) -> tuple[list[Measure], list[Row]]:
    print("Figure 10: 160 functions on one node", flush=True)
    measures, told = [], []
    for variant, bar, better in ((FULL, 1.0, "higher"), (NATIVE, 0.5, "lower"), (KEEP_ALIVE, 0.1, "lower")):
        results = [run(variant, runs.drawn(160, length, seed), length, seed=seed) for seed in length.seeds]
        measures.append(Measure(f"compliant_160.{variant.name}", runs.shares(results), "share", bar, better))
        executed, kept = results[0].executed(), results[0].compliant()
        told.append(f"{variant.name} {executed} executed, {kept} compliant")
    why = "footprints of six models are not printed (80 native places instead of 72); keep-alive is a histogram's p99"
    paper = "torpor 160/160, native 72 executed, keep-alive 112 executed, 7 compliant"
    return measures, [("10 160 functions", paper, "; ".join(told), why)]


def _ablations(how: Run, length: Length) -> tuple[list[Measure], list[Row]]:
    print(
        "Figure 11: ablations at 560 functions; first Poisson at the paper's rates, then recorded windows", flush=True
    )
    shares: dict[str, list[float]] = {}
    for name in ABLATIONS:
        seeds = length.seeds if name in ("full", "fifo") else length.seeds[:1]
        coming = [runs.drawn(560, length, seed) for seed in seeds]
        shares[name] = runs.shares([run(VARIANTS[name], c, length, seed=n) for n, c in enumerate(coming)])
    worst = sorted(shares["full"])[len(shares["full"]) // 2]
    measures = [Measure("compliant_share_560.full", shares["full"], "share", 0.8, "higher")]
    for name in ABLATIONS[1:]:
        measures.append(
            Measure(f"compliant_share_560.{name}", shares[name], "share", math.nextafter(worst, 0), "lower")
        )
    by_count: dict[str, list[tuple[float, float]]] = {name: [] for name in (*ABLATIONS, "late_last")}
    single = Length(min(length.minutes, 6), (1,))
    for count in (480,) if how.quick else (320, 480, 560, 640):
        for name, points in by_count.items():
            points.append((count, run(VARIANTS[name], runs.drawn(count, single, 1), single).compliant_share()))
    plot.lines(how.plots / "torpor-fig11.svg", "Compliant functions", "functions", "share", by_count)
    for count in (560,) if how.quick else (560, 640):
        for name in ABLATIONS:
            results = run(VARIANTS[name], runs.recorded(count, single, 1), single)
            measures.append(Measure(f"compliant_share_{count}_recorded.{name}", [results.compliant_share()], "share"))
    text = ", ".join(f"{name} {sorted(values)[len(values) // 2]:.0%}" for name, values in shares.items())
    at480 = next(share for count, share in by_count["full"] if count == 480)
    return measures, [
        ("11 560 functions", "full over 80%, the others below", text, "rates by a power law through Figure 2's points"),
        ("11 480 functions", "all compliant", f"{at480:.1%}", "5 minutes of requests: one late one in 50 is too many"),
    ]


def _mix(how: Run, length: Length) -> tuple[list[Measure], list[Row]]:
    print("Figure 12: DenseNet-201 and Bert-qa, which takes 60% of the memory", flush=True)
    found = runs.mix(length)
    text = "; ".join(
        f"{variant} {model} {tails[0] * 1000:.0f}/{tails[1] * 1000:.0f} ms"
        for variant, models in found.items()
        for model, tails in models.items()
    )
    bert = {variant: models["Bert-qa"][1] * 1000 for variant, models in found.items()}
    print(f"  p90/p98: {text}", flush=True)
    measures = [Measure(f"bert_p98_ms.{variant}", [tail], "ms") for variant, tail in bert.items()]
    return measures, [
        ("12 tails p90/p98", "Bert-qa misses 200 ms by LRU only", text, "70 Bert-qa; the paper gives no count")
    ]


def _cluster(how: Run, length: Length) -> tuple[list[Measure], list[Row]]:
    print("Figure 14: six nodes", flush=True)
    variants = (FULL, NATIVE, NON_SWAP, SIMPLE_SWAP)
    by_count: dict[str, list[tuple[float, float]]] = {v.name: [] for v in variants}
    measures, told = [], []
    short = Length(min(length.minutes, 6), (1,))
    for count in (1000,) if how.quick else (500, 1000, 2000, 3000):
        for variant in variants:
            results = run(variant, runs.drawn(count, short, 14), short, nodes=6, of=CLUSTER)
            by_count[variant.name].append((count, results.compliant_share()))
            if count == 1000:
                bar = 1.0 if variant is FULL else None
                share = results.compliant_share()
                measures.append(Measure(f"compliant_share_1000.{variant.name}", [share], "share", bar, "higher"))
                spread = sum(runs.variances(results)) / 6
                over = results.over_deadline([127 / 128])[0]
                told.append(f"{variant.name} {share:.0%}, 127/128 at {over:.2f} deadlines, variance {spread:.3f}")
    plot.lines(how.plots / "torpor-fig14.svg", "Compliant functions on six nodes", "functions", "share", by_count)
    why = "at 5 to 30/min 167 functions a node are 18% load: the paper's cluster had busier functions, not described"
    paper = "torpor all within deadlines; native ≤ 500 functions; SimpleSwap 4x, NonSwap 7x the deadline"
    return measures, [("14 1,000 functions", paper, "; ".join(told), why)]


def _beyond(how: Run, length: Length) -> tuple[list[Measure], list[Row]]:
    print("Beyond the paper: the most functions at 98%, and 10,000 functions over 50 nodes", flush=True)
    most = Length(min(length.minutes, 6), (1,))
    measures = []
    if not how.quick:
        for variant, name in ((FULL, "max_functions_at_98"), (LATE_LAST, "max_functions_at_98.late_last")):
            measures.append(Measure(name, [float(runs.most_functions(most, variant))], "functions", None, "higher"))
    short, nodes = Length(3, (1,)), 2 if how.quick else 50
    results = run(FULL, runs.drawn(200 * nodes, short, 50), short, nodes=nodes, of=CLUSTER)
    late, early = runs.costs(results, CLUSTER, nodes)
    for name, cost in (("full", late), ("early", early)):
        print(f"  {name}: {cost.devices} devices, {cost.device_hours:.1f} device hours a million requests, ", end="")
        print(f"users pay for {cost.bill:.1f}", flush=True)
        measures.append(Measure(f"device_hours_per_million.{name}", [cost.device_hours], "h"))
        measures.append(Measure(f"billed_hours_per_million.{name}", [cost.bill], "h"))
    measures.append(Measure("compliant_share_10000.full", [results.compliant_share()], "share", 0.98, "higher"))
    ratio = late.device_hours / early.device_hours
    measures.append(Measure("cost_over_early_binding", [ratio], "ratio", 1.0, "lower", "devices' hours"))
    measures.append(Measure("bill_over_early_binding", [late.bill / early.bill], "ratio", 1.0, "lower"))
    text = f"{1 - ratio:.0%} of the devices, {1 - late.bill / early.bill:.0%} of users' bills saved"
    why = "its cluster is a mix of models up to 24 GB; ours the eight of Table 4, 200 functions a node"
    return measures, [("15, Table 5: savings", "65% of GPUs, 70% of users' cost", text, why)]


SCENARIO = Scenario(
    name="torpor-sim",
    title="Torpor's Figures 8 to 14 in the simulator, with the paper's latencies; then 10,000 functions",
    minutes=25,
    measure=_measure,
)
