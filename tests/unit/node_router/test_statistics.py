"""ModelStatistics, as Triton counts: by request and by execution, and equal counts where clients want them equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rouse_node_router import statistics as module
from rouse_node_router.statistics import Compute, Statistics

EXECUTIONS = st.lists(
    st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.floats(0, 50), st.floats(0, 50)), max_size=20
)


@given(EXECUTIONS, st.integers(0, 5), st.integers(0, 5))
def test_every_figure_adds_up(executions: list[tuple[list[int], float, float]], failed: int, cancelled: int) -> None:
    counted = Statistics()
    for members, infer_ms, queue_ms in executions:
        compute = Compute(1.0, infer_ms, 2.0)
        counted.executed(sum(members), compute)
        for rows in members:
            counted.succeeded(rows, queue_ms + infer_ms + 3.0, queue_ms, compute, at=1000.5)
    for _ in range(failed):
        counted.failed(7.0, cancelled=False)
    for _ in range(cancelled):
        counted.failed(5.0, cancelled=True)
    told = counted.message()
    requests = sum(len(members) for members, _, _ in executions)
    assert told.inference_count == sum(sum(members) for members, _, _ in executions)
    assert told.execution_count == len(executions)
    parts = (told.success, told.queue, told.compute_input, told.compute_infer, told.compute_output)
    assert {part.count for part in parts} == {requests}
    assert (told.fail.count, told.fail.nanos) == (failed, failed * 7_000_000)
    assert (told.cancel.count, told.cancel.nanos) == (cancelled, cancelled * 5_000_000)
    assert told.compute_output.nanos == requests * 2_000_000
    assert abs(told.success.nanos - sum(part.nanos for part in parts[1:])) <= 10
    assert sum(size.batch_size * size.compute_infer.count for size in told.batches) == told.inference_count
    assert [size.batch_size for size in told.batches] == sorted({sum(members) for members, _, _ in executions})
    assert told.last_inference_ms == (1_000_500 if requests else 0)


def test_sizes_are_bounded_and_nothing_else_is_lost() -> None:
    counted = Statistics()
    for rows in range(1, module.MAX_SIZES + 100):
        counted.executed(rows, Compute())
    assert len(counted.batches) == module.MAX_SIZES
    assert counted.executions == module.MAX_SIZES + 99
