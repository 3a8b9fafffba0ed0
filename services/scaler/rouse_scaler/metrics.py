"""Metrics of scaler. What was decided for each function is read from the registry when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rouse_common.metrics import LATENCY_BUCKETS_S
from rouse_scaler.state import Entry

WAKES = Counter("rouse_wakes_total", "Wake-ups that were asked for, by what became of them.", ["outcome"])
WAKE_LATENCY = Histogram("rouse_wake_seconds", "Time to answer a wake-up.", buckets=LATENCY_BUCKETS_S)
STARTS = Counter("rouse_instance_starts_total", "Instances started.", ["cause", "outcome"])
STOPS = Counter("rouse_instance_stops_total", "Instances stopped.", ["outcome"])
TICK = Histogram("rouse_scaling_round_seconds", "Time to look at all functions.", buckets=LATENCY_BUCKETS_S)


class DecisionCollector(Collector):
    """Rates and instances of each function as last decided on."""

    def __init__(self, entries: Callable[[], Iterable[Entry]]) -> None:
        self._entries = entries

    def collect(self) -> Iterator[Metric]:
        desired = GaugeMetricFamily("rouse_instances_desired", "Instances there should be.", labels=["function"])
        present = GaugeMetricFamily("rouse_instances_counted", "Instances there are.", labels=["function"])
        arrivals = GaugeMetricFamily("rouse_arrival_rate", "Arrivals a second.", labels=["function"])
        totals: dict[str, tuple[int, int, float]] = {}
        for entry in self._entries():
            if entry.seen is None or entry.decision is None:
                continue
            # A function with several versions that have traffic is all of them.
            wanted, there, rate = totals.get(entry.function, (0, 0, 0.0))
            rate += entry.seen.arrival_rate or 0.0
            totals[entry.function] = wanted + entry.decision.desired, there + entry.counted, rate
        for function, (wanted, there, rate) in totals.items():
            desired.add_metric([function], wanted)
            present.add_metric([function], there)
            arrivals.add_metric([function], rate)
        yield from (desired, present, arrivals)
