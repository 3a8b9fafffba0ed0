"""Metrics by the names that Triton's dashboards know, of what the nodes count for ModelStatistics.

The nodes are asked now and then, not when scraped: Prometheus reads from a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import REGISTRY
from prometheus_client.core import Metric, UntypedMetricFamily
from prometheus_client.registry import Collector

from rouse_common.errors import Unavailable
from rouse_common.tasks import periodically
from rouse_contracts.inference import ModelStatistics
from rouse_gateway.oip.statistics import Statistics

READ_S = 5.0
READ_TIMEOUT_S = 4.0
LABELS = ["model", "version"]
# Name without its beginning, what it says, and how it is read. Untyped: Triton's counters lack the ending that the
# text format gives a counter.
FIGURES: tuple[tuple[str, str, Callable[[ModelStatistics], float]], ...] = (
    ("request_success", "Requests answered.", lambda row: row.inference_stats.success.count),
    ("request_failure", "Requests that failed.", lambda row: row.inference_stats.fail.count),
    ("count", "Inferences: rows of requests answered.", lambda row: row.inference_count),
    ("exec_count", "Executions, of one request or of a batch.", lambda row: row.execution_count),
    ("request_duration_us", "Time of requests answered.", lambda row: row.inference_stats.success.ns / 1000),
    ("queue_duration_us", "Time that requests waited.", lambda row: row.inference_stats.queue.ns / 1000),
    ("compute_input_duration_us", "Time of reading inputs.", lambda row: row.inference_stats.compute_input.ns / 1000),
    ("compute_infer_duration_us", "Time of executing.", lambda row: row.inference_stats.compute_infer.ns / 1000),
    (
        "compute_output_duration_us",
        "Time of writing outputs.",
        lambda row: row.inference_stats.compute_output.ns / 1000,
    ),
)


class InferenceCollector(Collector):
    """The figures that were read last."""

    def __init__(self) -> None:
        self.rows: tuple[ModelStatistics, ...] = ()

    def collect(self) -> Iterator[Metric]:
        rows = self.rows
        for name, text, read in FIGURES:
            family = UntypedMetricFamily(f"nv_inference_{name}", text, labels=LABELS)
            for row in rows:
                family.add_metric([row.name, row.version], read(row))
            yield family


async def publish(statistics: Statistics) -> None:
    """Keeps the figures of all models in the registry until it is cancelled."""
    collector = InferenceCollector()

    async def read() -> None:
        try:
            collector.rows = tuple((await statistics.read("", "", READ_TIMEOUT_S)).model_stats)
        except Unavailable as error:
            if error.reason != "NOT_READY":  # at the start, which says so itself
                raise

    REGISTRY.register(collector)
    try:
        await periodically("reading statistics for nv_inference metrics", READ_S, read)
    finally:
        REGISTRY.unregister(collector)
