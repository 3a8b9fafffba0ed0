"""Metrics of node-router. What each function's queue counts is read from the queues when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rouse_common.metrics import LATENCY_BUCKETS_S
from rouse_node_router.tickets import Outcome
from rouse_node_router.versions import Row

QUEUE_DELAY = Histogram(
    "rouse_queue_delay_seconds",
    "Waiting of a request until it held a device, swap included.",
    buckets=LATENCY_BUCKETS_S,
)
LOADING_QUEUE_DELAY = Histogram(
    "rouse_loading_queue_delay_seconds",
    "The same of requests whose model had to be swapped in.",
    buckets=LATENCY_BUCKETS_S,
)
BATCH_ROWS = Histogram(
    "rouse_batch_rows", "Rows of executions of batchable functions.", buckets=[2**power for power in range(11)]
)
BATCH_REQUESTS = Histogram(
    "rouse_batch_requests",
    "Requests that were executed together, of batchable functions.",
    buckets=[2**power for power in range(9)],
)
SHED = Counter("rouse_requests_shed_total", "Requests refused because of overload.", ["reason"])
RETRIES = Counter("rouse_request_retries_total", "Executions tried again because nothing had run.", ["reason"])
REPLAYS = Counter("rouse_replays_total", "Executions that were given to a tape, by what came of it.", ["outcome"])
USAGE_DROPPED = Counter("rouse_usage_dropped_total", "Usage records lost because the buffer was full.")
RELEASES_DROPPED = Counter("rouse_releases_dropped_total", "Leases left to expire because gpu-server was away.")


class QueueCollector(Collector):
    """Queue lengths and request counts by function, from the queues themselves: nothing on the hot path."""

    def __init__(self, describe: Callable[[], Iterable[Row]]) -> None:
        self._describe = describe

    def collect(self) -> Iterator[Metric]:
        lengths = GaugeMetricFamily("rouse_queue_length", "Requests waiting.", labels=["function"])
        executing = GaugeMetricFamily("rouse_executing", "Requests holding a device.", labels=["function"])
        requests = CounterMetricFamily(
            "rouse_node_requests", "Requests by how they ended.", labels=["function", "outcome"]
        )
        by_function: dict[str, list[Row]] = {}
        for row in self._describe():
            by_function.setdefault(row.function, []).append(row)
        for function, rows in by_function.items():
            lengths.add_metric([function], sum(row.queued for row in rows))
            executing.add_metric([function], sum(row.executing for row in rows))
            for outcome in Outcome:
                requests.add_metric([function, outcome.value], sum(row.ended[outcome] for row in rows))
        yield from (lengths, executing, requests)
