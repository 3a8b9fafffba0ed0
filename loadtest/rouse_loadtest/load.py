"""Load: closed loops, each client waiting for its answer before it asks again."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Request = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Sample:
    """One stretch of load: seconds of each answer, and of the whole."""

    latencies_s: list[float]
    elapsed_s: float

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.latencies_s) * 1000

    @property
    def p99_ms(self) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000

    @property
    def throughput(self) -> float:
        """Answers a second."""
        return len(self.latencies_s) / self.elapsed_s


Samples = dict[tuple[str, int], list[Sample]]
"""Rounds by target and number of clients."""


def ratios(samples: Samples, clients: int, above: str, below: str, what: str) -> list[float]:
    """`what` of one target over that of another, round by round, so that what changed between rounds cancels out."""
    pairs = zip(samples[above, clients], samples[below, clients], strict=True)
    return [getattr(a, what) / getattr(b, what) for a, b in pairs]


async def closed_loop(request: Request, clients: int, seconds: float) -> Sample:
    """`clients` loops side by side for `seconds`. Whatever a request raises ends the measurement."""
    latencies: list[float] = []
    began = time.perf_counter()
    until = began + seconds

    async def client() -> None:
        while (start := time.perf_counter()) < until:
            await request()
            latencies.append(time.perf_counter() - start)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(client())
    return Sample(latencies, time.perf_counter() - began)
