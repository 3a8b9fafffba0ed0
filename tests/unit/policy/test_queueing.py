"""The order of waiting requests and the refusal of those that find no room."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_policy import queueing
from rouse_policy.queueing import Action, Head, Load, Settings, Snapshot, State, Throughput, admit, decide, learn

SETTINGS = Settings(max_acquiring=4)
TIMES = st.floats(0, 1000)
HEADS = st.lists(st.builds(Head, st.text("abc", min_size=1), TIMES, TIMES), unique_by=lambda h: h.version_id)


@given(HEADS, st.integers(0, 8), TIMES)
def test_the_earliest_deadline_goes_first_and_never_after_it_passed(
    heads: list[Head], acquiring: int, now: float
) -> None:
    decision, _ = decide(Snapshot(tuple(heads), acquiring), State(), SETTINGS, now)
    by_version = {head.version_id: head for head in heads}
    if decision.action is Action.START:
        chosen = by_version[decision.version_id]
        assert chosen.deadline > now
        assert acquiring < SETTINGS.max_acquiring
        assert all((chosen.deadline, chosen.arrived) <= (head.deadline, head.arrived) for head in heads)
    elif decision.action is Action.EXPIRE:
        assert by_version[decision.version_id].deadline <= now
    else:
        assert not heads or acquiring >= SETTINGS.max_acquiring
        assert all(head.deadline > now for head in heads)


def test_among_equal_deadlines_the_earlier_arrival_goes_first() -> None:
    heads = (Head("late", 9.0, 2.0), Head("early", 9.0, 1.0))
    decision, _ = decide(Snapshot(heads, 0), State(), SETTINGS, 3.0)
    assert (decision.action, decision.version_id) == (Action.START, "early")


def test_an_expired_head_leaves_though_the_limit_is_reached() -> None:
    decision, _ = decide(Snapshot((Head("v", 1.0, 0.0),), SETTINGS.max_acquiring), State(), SETTINGS, 1.5)
    assert decision == queueing.Decision(Action.EXPIRE, "v", "its deadline passed 0.500 s ago")


@given(st.integers(0, 300), st.integers(0, 2), st.integers(0, 4), st.integers(1, 300))
def test_admission_keeps_to_the_capacity(queued: int, acquiring: int, executing: int, capacity: int) -> None:
    admission = admit(Load(queued, acquiring, executing, capacity), Throughput(), SETTINGS)
    waiting = queued + acquiring - (acquiring > 0 and executing == 0)
    assert admission.admitted == (waiting < capacity)
    assert (admission.retry_after_s is None) == admission.admitted


def test_the_request_that_is_about_to_run_takes_no_place() -> None:
    assert admit(Load(queued=0, acquiring=1, executing=0, capacity=1), Throughput(), SETTINGS).admitted
    assert not admit(Load(queued=0, acquiring=1, executing=1, capacity=1), Throughput(), SETTINGS).admitted


def test_a_refusal_says_when_the_queue_will_be_served() -> None:
    full = Load(queued=10, acquiring=2, executing=1, capacity=12)
    assert admit(full, Throughput(), SETTINGS).retry_after_s == SETTINGS.unknown_retry_s
    refused = admit(full, Throughput(interval_s=0.25), SETTINGS)
    assert refused.retry_after_s == pytest.approx(12 * 0.25)
    assert refused.reason == "12 requests wait, 12 is the limit; one is served every 250 ms"


@given(st.floats(0, math.inf))
def test_retry_stays_within_its_bounds(interval_s: float) -> None:
    refused = admit(Load(300, 2, 1, 256), Throughput(interval_s=interval_s), SETTINGS)
    assert refused.retry_after_s is not None
    assert SETTINGS.min_retry_s <= refused.retry_after_s <= SETTINGS.max_retry_s


def test_throughput_is_measured_only_while_others_wait() -> None:
    throughput = learn(Throughput(), others=True, settings=SETTINGS, now=10.0)
    assert throughput == Throughput(10.0, None)
    throughput = learn(throughput, others=False, settings=SETTINGS, now=10.5)
    assert throughput == Throughput(None, 0.5)
    # A minute without requests says nothing about the rate.
    throughput = learn(throughput, others=True, settings=SETTINGS, now=70.0)
    assert throughput == Throughput(70.0, 0.5)
    throughput = learn(throughput, others=True, settings=SETTINGS, now=71.0)
    assert throughput.interval_s == pytest.approx(0.5 + SETTINGS.smoothing * 0.5)
