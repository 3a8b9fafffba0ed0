"""Percentiles over all that was due, answered or not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_loadtest.tallies import Tally, compliant, together

LATENCIES = st.lists(st.floats(0.0001, 30.0), min_size=1, max_size=200)
QUANTILES = st.sampled_from([0.01, 0.5, 0.9, 0.98, 0.99, 1.0])


@given(LATENCIES, st.integers(0, 20), QUANTILES)
def test_a_quantile_is_that_of_the_sorted_latencies_with_the_unanswered_behind_them(
    latencies: list[float], unanswered: int, quantile: float
) -> None:
    tally = Tally()
    for latency in latencies:
        tally.answered(latency)
    for _ in range(unanswered):
        tally.failed("DEADLINE_EXCEEDED")
    ordered = [*sorted(latencies), *[math.inf] * unanswered]
    expected = ordered[max(1, math.ceil(quantile * len(ordered) - 1e-9)) - 1]
    assert tally.quantile_s(quantile) == pytest.approx(expected, rel=2e-3, abs=2e-6)


def test_errors_are_late_and_told_by_reason() -> None:
    tally = Tally(objective_s=0.1)
    for latency in (0.05, 0.1, 0.2):
        tally.answered(latency)
    tally.failed("QUEUE_FULL")
    assert (tally.sent, tally.answers, tally.in_time, tally.share_in_time) == (4, 3, 2, 0.5)
    assert tally.row("f0")[-1] == "QUEUE_FULL 1"
    assert tally.row("f0")[4] == "inf"


@pytest.mark.parametrize(("late", "kept"), [(2, True), (3, False)])
def test_an_objective_of_98_percent_lets_two_of_a_hundred_be_late(late: int, kept: bool) -> None:
    tally = Tally(objective_s=0.1)
    for number in range(100):
        tally.answered(0.2 if number < late else 0.05)
    assert tally.compliant(0.98) is kept
    assert compliant([tally, Tally(0.1)]) == kept + 1


@given(st.lists(LATENCIES, min_size=1, max_size=4), QUANTILES)
def test_tallies_together_are_as_if_they_had_been_one(parts: list[list[float]], quantile: float) -> None:
    one, several = Tally(), [Tally() for _ in parts]
    for tally, latencies in zip(several, parts, strict=True):
        for latency in latencies:
            tally.answered(latency)
            one.answered(latency)
        tally.failed("X")
        one.failed("X")
    whole = together(several)
    assert (whole.sent, whole.errors) == (one.sent, one.errors)
    assert np.isinf(one.quantile_s(quantile)) == np.isinf(whole.quantile_s(quantile))
    assert whole.quantile_s(0.3) == one.quantile_s(0.3)
