"""What the Open Inference Protocol's ModelStatistics asks of one version, counted as Triton counts it.

Durations are sums over requests: every request of a batch counts the whole time of the execution that it shared.
Only the figures by batch size are sums over executions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rouse_contracts import node

# Sizes that are told apart; further ones count in everything but the figures by size.
MAX_SIZES = 1024


@dataclass(slots=True)
class Sum:
    """A number of events and the milliseconds that they took together."""

    count: int = 0
    total_ms: float = 0.0

    def add(self, ms: float) -> None:
        self.count += 1
        self.total_ms += ms

    def message(self) -> node.Tally:
        return node.Tally(count=self.count, nanos=round(self.total_ms * 1e6))


class Compute(NamedTuple):
    """The parts of an execution, in milliseconds: reading inputs, the function itself, writing outputs."""

    input_ms: float = 0.0
    infer_ms: float = 0.0
    output_ms: float = 0.0


@dataclass(slots=True)
class ComputeSums:
    input: Sum = field(default_factory=Sum)
    infer: Sum = field(default_factory=Sum)
    output: Sum = field(default_factory=Sum)

    def add(self, compute: Compute) -> None:
        self.input.add(compute.input_ms)
        self.infer.add(compute.infer_ms)
        self.output.add(compute.output_ms)


@dataclass(slots=True)
class Statistics:
    """Counts since the router knows the version."""

    inferences: int = 0
    executions: int = 0
    success: Sum = field(default_factory=Sum)
    fail: Sum = field(default_factory=Sum)
    cancel: Sum = field(default_factory=Sum)
    queue: Sum = field(default_factory=Sum)
    compute: ComputeSums = field(default_factory=ComputeSums)
    batches: dict[int, ComputeSums] = field(default_factory=dict)
    last_at: float = 0.0

    def executed(self, rows: int, compute: Compute) -> None:
        """An execution of so many rows that succeeded."""
        self.executions += 1
        sums = self.batches.get(rows)
        if sums is None:
            if len(self.batches) >= MAX_SIZES:
                return
            sums = self.batches[rows] = ComputeSums()
        sums.add(compute)

    def succeeded(self, rows: int, total_ms: float, queue_ms: float, compute: Compute, at: float) -> None:
        """A request that was answered, at `at` seconds since 1970."""
        self.inferences += rows
        self.success.add(total_ms)
        self.queue.add(queue_ms)
        self.compute.add(compute)
        self.last_at = at

    def failed(self, total_ms: float, *, cancelled: bool) -> None:
        (self.cancel if cancelled else self.fail).add(total_ms)

    def message(self) -> node.InferenceStatistics:
        return node.InferenceStatistics(
            inference_count=self.inferences,
            execution_count=self.executions,
            success=self.success.message(),
            fail=self.fail.message(),
            queue=self.queue.message(),
            compute_input=self.compute.input.message(),
            compute_infer=self.compute.infer.message(),
            compute_output=self.compute.output.message(),
            cancel=self.cancel.message(),
            batches=[
                node.BatchTally(
                    batch_size=rows,
                    compute_input=sums.input.message(),
                    compute_infer=sums.infer.message(),
                    compute_output=sums.output.message(),
                )
                for rows, sums in sorted(self.batches.items())
            ],
            last_inference_ms=round(self.last_at * 1000),
        )
