"""Copies that share a switch, against the arithmetic of fair shares and against Torpor's Table 3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_simulator import arrivals, profile
from rouse_simulator.clock import Clock
from rouse_simulator.links import SharedLink


def ends(copies: list[tuple[float, int]], flow: float, total: float) -> dict[int, float]:
    clock = Clock()
    done: dict[int, float] = {}
    link = SharedLink(clock, flow, total)
    for number, (start, size) in enumerate(copies):
        clock.at(start, link.copy, size, lambda number=number: done.__setitem__(number, clock.now))
    clock.run(arrivals.poisson([], 1.0, 0), lambda _: None, 1e6)
    return done


def test_one_copy_runs_at_its_own_rate() -> None:
    assert ends([(1.0, 100)], 10.0, 12.0) == pytest.approx({0: 11.0})


def test_two_share_what_there_is() -> None:
    # The first has 60 left when the second comes; from then on each runs at 6.
    assert ends([(0.0, 100), (4.0, 60)], 10.0, 12.0) == pytest.approx({0: 14.0, 1: 14.0})


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 1000)), min_size=1, max_size=8),
    st.floats(1, 50),
    st.floats(1, 80),
)
def test_all_end_no_sooner_than_the_link_allows(copies: list[tuple[float, int]], flow: float, total: float) -> None:
    done = ends(copies, flow, total)
    assert len(done) == len(copies)
    for number, (start, size) in enumerate(copies):
        assert done[number] - start >= size / min(flow, total) * (1 - 1e-9)
    busy_until, first = max(done.values()), min(start for start, _ in copies)
    assert busy_until - first >= sum(size for _, size in copies) / total * (1 - 1e-9)


def swapping(names: tuple[str, str], seconds: float) -> list[float]:
    """Mean latencies of two models that are swapped in over one switch for each request, one after the other."""
    torpor = profile.torpor()
    node, clock = torpor.node, Clock()
    link = SharedLink(clock, node.flow_bytes_s, node.switch_bytes_s)
    latencies: list[list[float]] = [[], []]

    def start(number: int) -> None:
        model, began = torpor.model(names[number]), clock.now

        def copied() -> None:
            clock.at(max(began + model.swap_host_s, clock.now + node.tail_s), finish)

        def finish() -> None:
            latencies[number].append(clock.now - began)
            start(number)

        link.copy(model.weights_bytes, copied)

    start(0)
    # Not in step with each other.
    clock.at(0.0137, start, 1)
    clock.run(arrivals.poisson([], 1.0, 0), lambda _: None, seconds)
    return [sum(found) / len(found) for found in latencies]


# Torpor, Table 3: milliseconds of the first while the second is swapped in all the time.
@pytest.mark.parametrize(
    ("model", "beside", "paper_ms"),
    [
        ("DenseNet-169", "ResNet-152", 27),
        ("DenseNet-169", "Bert-qa", 27),
        ("ResNet-152", "DenseNet-169", 31),
        ("ResNet-152", "Bert-qa", 43),
        ("Bert-qa", "DenseNet-169", 166),
        ("Bert-qa", "ResNet-152", 240),
    ],
)
def test_contention_is_what_the_paper_measured(model: str, beside: str, paper_ms: float) -> None:
    ours, _ = swapping((model, beside), 60.0)
    assert ours * 1000 == pytest.approx(paper_ms, rel=0.15)
