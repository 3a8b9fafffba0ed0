"""ModelStatistics: what the nodes counted for each version since their routers started, added up."""

from __future__ import annotations

from collections.abc import Iterable

from rouse_contracts import inference, node
from rouse_gateway.adapters.queues import Queues
from rouse_gateway.state import Routes, Version

TALLIES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
BATCH_TALLIES = ("compute_input", "compute_infer", "compute_output")


class Statistics:
    """Reads the figures of models off the nodes."""

    def __init__(self, routes: Routes, queues: Queues) -> None:
        self._routes = routes
        self._queues = queues

    async def read(self, name: str, number: str, timeout_s: float) -> inference.ModelStatisticsResponse:
        """The figures of one version, of every version of a model, or with neither of all models, in the order
        of their names. Raises NotFound, InvalidArgument, and Unavailable where a node does not answer."""
        table = self._routes.loaded_table()
        if number:
            versions = [table.version(name, number)]
        else:
            routes = [table.route(name)] if name else [table.functions[key] for key in sorted(table.functions)]
            versions = [route.versions[key] for route in routes for key in sorted(route.versions, key=_order) if key]
        found: dict[str, list[node.InferenceStatistics]] = {}
        for queue in await self._queues.describe(table.routers.values(), timeout_s):
            found.setdefault(queue.version_id, []).append(queue.statistics)
        rows = [add_up(version, found.get(version.version_id, ())) for version in versions]
        return inference.ModelStatisticsResponse(model_stats=rows)


def _order(number: str) -> int:
    return int(number) if number else 0


def add_up(version: Version, parts: Iterable[node.InferenceStatistics]) -> inference.ModelStatistics:
    """The figures of a version from those of its nodes."""
    total = inference.ModelStatistics(name=version.function, version=version.number)
    batches: dict[int, inference.InferBatchStatistics] = {}
    total.inference_stats.SetInParent()
    for part in parts:
        total.inference_count += part.inference_count
        total.execution_count += part.execution_count
        total.last_inference = max(total.last_inference, part.last_inference_ms)
        for field in TALLIES:
            _add(getattr(total.inference_stats, field), getattr(part, field))
        for batch in part.batches:
            row = batches.setdefault(batch.batch_size, inference.InferBatchStatistics(batch_size=batch.batch_size))
            for field in BATCH_TALLIES:
                _add(getattr(row, field), getattr(batch, field))
    total.batch_stats.extend(batches[size] for size in sorted(batches))
    return total


def _add(total: inference.StatisticDuration, part: node.Tally) -> None:
    total.count += part.count
    total.ns += part.nanos
