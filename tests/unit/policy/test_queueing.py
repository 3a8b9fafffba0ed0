"""The order of waiting requests and the refusal of those that find no room, or no time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_policy import queueing
from rouse_policy.queueing import (
    Action,
    Head,
    Load,
    Settings,
    Snapshot,
    State,
    Throughput,
    Verdict,
    admit,
    decide,
    learn,
)

SETTINGS = Settings(max_acquiring=4)
TIMES = st.floats(0, 1000)
HEADS = st.lists(
    st.builds(Head, st.text("abc", min_size=1), TIMES, TIMES, st.sampled_from([0.0, 1.0])),
    unique_by=lambda h: h.version_id,
)


def load(waiting: int = 0, executing: int = 0, capacity: int = 256, ahead: float = 0, remaining_s: float = 10) -> Load:
    return Load(waiting, executing, capacity, ahead, remaining_s)


@given(HEADS, st.integers(0, 8), TIMES)
def test_the_least_served_tenant_goes_first_then_the_earliest_deadline(
    heads: list[Head], acquiring: int, now: float
) -> None:
    decision, _ = decide(Snapshot(tuple(heads), acquiring), State(), SETTINGS, now)
    by_version = {head.version_id: head for head in heads}
    if decision.action is Action.START:
        chosen = by_version[decision.version_id]
        assert acquiring < SETTINGS.max_acquiring
        order = [(head.tag, head.deadline, head.arrived) for head in heads]
        assert (chosen.tag, chosen.deadline, chosen.arrived) == min(order)
    else:
        assert not heads or acquiring >= SETTINGS.max_acquiring


def test_among_equal_deadlines_the_earlier_arrival_goes_first() -> None:
    heads = (Head("late", 9.0, 2.0), Head("early", 9.0, 1.0))
    decision, _ = decide(Snapshot(heads, 0), State(), SETTINGS, 3.0)
    assert (decision.action, decision.version_id) == (Action.START, "early")


@given(st.integers(0, 300), st.integers(0, 4), st.integers(1, 300))
def test_admission_keeps_to_the_capacity(waiting: int, executing: int, capacity: int) -> None:
    admission = admit(load(waiting, executing, capacity), Throughput(), SETTINGS)
    counted = waiting - (waiting > 0 and executing == 0)
    assert admission.admitted == (counted < capacity)
    assert (admission.retry_after_s is None) == admission.admitted


def test_the_request_that_is_about_to_run_takes_no_place() -> None:
    assert admit(load(waiting=1, capacity=1), Throughput(), SETTINGS).admitted
    assert admit(load(waiting=1, executing=1, capacity=1), Throughput(), SETTINGS).verdict is Verdict.FULL


def test_a_refusal_says_when_the_queue_will_be_served() -> None:
    full = load(waiting=12, executing=1, capacity=12)
    assert admit(full, Throughput(), SETTINGS).retry_after_s == SETTINGS.unknown_retry_s
    refused = admit(full, Throughput(interval_s=0.25), SETTINGS)
    assert refused.retry_after_s == pytest.approx(12 * 0.25)
    assert refused.reason == "12 requests wait, 12 is the limit; one is served every 250 ms"


def test_who_cannot_be_served_in_time_is_refused_at_once() -> None:
    measured = Throughput(interval_s=0.25)
    late = admit(load(waiting=12, executing=1, ahead=12, remaining_s=2.0), measured, SETTINGS)
    assert late.verdict is Verdict.TOO_LATE
    assert late.retry_after_s == pytest.approx(1.0)
    assert late.reason == "12 requests go before it, one is served every 250 ms: 3 s, 2 s are left"
    assert admit(load(waiting=12, executing=1, ahead=12, remaining_s=3.0), measured, SETTINGS).admitted
    # Its own execution counts where it is known.
    slow = Load(12, 1, 256, 12, 3.0, execution_s=0.1)
    assert admit(slow, measured, SETTINGS).verdict is Verdict.TOO_LATE
    # Of a flood before it, only the part that goes before its own tenant's requests.
    assert admit(load(waiting=12, executing=1, ahead=1, remaining_s=0.3), measured, SETTINGS).admitted


@given(st.integers(0, 300), st.floats(0, 10), st.integers(0, 2))
def test_nobody_is_refused_for_time_on_a_guess(waiting: int, remaining_s: float, executing: int) -> None:
    arriving = Load(waiting, executing, 1000, waiting, remaining_s, execution_s=100.0)
    assert admit(arriving, Throughput(), SETTINGS).admitted
    # Nor where nothing stands before it, whatever was measured: else nothing could be measured again.
    first = Load(1 - min(executing, 1), executing, 1000, 1 - min(executing, 1), remaining_s, execution_s=100.0)
    assert admit(first, Throughput(interval_s=1000.0), SETTINGS).admitted


@given(st.floats(0, math.inf), st.booleans())
def test_retry_stays_within_its_bounds(interval_s: float, full: bool) -> None:
    arriving = load(300, 1, 256 if full else 1000, ahead=300, remaining_s=0.0)
    refused = admit(arriving, Throughput(interval_s=interval_s), SETTINGS)
    if refused.retry_after_s is not None:
        assert SETTINGS.min_retry_s <= refused.retry_after_s <= SETTINGS.max_retry_s
    else:
        assert interval_s == 0
        assert not full


def test_throughput_is_measured_only_while_others_wait() -> None:
    throughput = learn(Throughput(), 1, others=True, settings=SETTINGS, now=10.0)
    assert throughput == Throughput(10.0, None)
    throughput = learn(throughput, 1, others=False, settings=SETTINGS, now=10.5)
    assert throughput == Throughput(None, 0.5)
    # A minute without requests says nothing about the rate.
    throughput = learn(throughput, 1, others=True, settings=SETTINGS, now=70.0)
    assert throughput == Throughput(70.0, 0.5)
    throughput = learn(throughput, 1, others=True, settings=SETTINGS, now=71.0)
    assert throughput.interval_s == pytest.approx(0.5 + SETTINGS.smoothing * 0.5)


def test_a_swap_is_not_taken_for_the_rate() -> None:
    usual = Throughput(10.0, 0.01)
    after_a_swap = learn(usual, 1, others=True, settings=SETTINGS, now=15.0)
    assert after_a_swap.interval_s == pytest.approx(0.01 + SETTINGS.smoothing * 0.03)
    for number in range(40):
        after_a_swap = learn(after_a_swap, 1, others=True, settings=SETTINGS, now=16.0 + number)
    assert after_a_swap.interval_s == pytest.approx(1.0, rel=0.1)


def test_a_batch_serves_all_its_members_at_once() -> None:
    throughput = learn(Throughput(finished_at=10.0), 8, others=True, settings=SETTINGS, now=12.0)
    assert throughput == Throughput(12.0, 0.25)
    assert queueing.learn(throughput, 16, others=True, settings=SETTINGS, now=16.0).interval_s == pytest.approx(0.25)
