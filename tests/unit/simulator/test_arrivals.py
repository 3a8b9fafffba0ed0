"""Arrivals: as many as the counts say, in order, and as even as their source makes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_simulator import arrivals

COUNTS = st.integers(1, 6).flatmap(
    lambda minutes: st.lists(st.lists(st.integers(0, 40), min_size=minutes, max_size=minutes), min_size=1, max_size=8)
)


@given(COUNTS, st.integers(0, 3))
def test_paced_arrivals_are_as_many_as_the_counts(minutes: list[list[int]], seed: int) -> None:
    coming = arrivals.paced(minutes, seed)
    assert len(coming) == sum(map(sum, minutes))
    assert coming.count == len(minutes)
    assert (np.diff(coming.times) >= 0).all()
    silent = [number for number, counts in enumerate(minutes) if not any(counts)]
    assert not set(coming.functions.tolist()) & set(silent)


def test_paced_arrivals_are_more_even_than_poisson_ones() -> None:
    rates = [30.0] * 100
    variation = []
    for coming in (arrivals.paced([[rate] * 5 for rate in rates], 1), arrivals.poisson(rates, 300.0, 1)):
        pauses = np.diff(coming.times)
        variation.append(pauses.std() / pauses.mean())
    # 20 ms between two: the root of 20 over 20, and 1.
    assert variation == pytest.approx([0.22, 1.0], abs=0.03)


def test_a_minute_without_requests_passes() -> None:
    coming = arrivals.paced([[0, 2], [0, 0]], 1)
    assert coming.times[0] >= 60.0


@given(COUNTS)
def test_the_gaps_are_each_functions_own(minutes: list[list[int]]) -> None:
    coming = arrivals.counted(minutes, 1)
    found = arrivals.gaps(coming)
    assert len(found) == len(minutes)
    for number, gaps in enumerate(found):
        times = coming.times[coming.functions == number]
        assert gaps == pytest.approx(np.diff(times).tolist())
