"""When a process that ended is started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_embedded.restart import Exit, Restart, RestartSettings, RestartState, decide

SETTINGS = RestartSettings(first_s=0.1, factor=2.0, longest_s=10.0, stable_s=30.0, start_attempts=5)
EXITS = st.builds(
    Exit, code=st.sampled_from([0, 1, 2, -9, -11, 137]), ran_s=st.floats(0, 1e6, allow_nan=False), ready=st.booleans()
)


def run(exits: list[Exit]) -> list[Restart]:
    """The decisions over a history, up to where it is given up."""
    state, decisions = RestartState(), []
    for exit in exits:
        decision, state = decide(exit, state, SETTINGS)
        decisions.append(decision)
        if decision.give_up:
            break
    return decisions


def test_the_wait_doubles_up_to_its_bound() -> None:
    waits = [decision.delay_s for decision in run([Exit(1, 1.0, True)] * 10)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0])


def test_a_process_that_ran_long_starts_as_if_for_the_first_time() -> None:
    decisions = run([Exit(1, 1.0, True)] * 6 + [Exit(-9, 31.0, True), Exit(-9, 1.0, True)])
    assert [decision.delay_s for decision in decisions[-2:]] == pytest.approx([0.1, 0.2])


def test_one_that_never_was_ready_is_given_up_after_its_attempts() -> None:
    decisions = run([Exit(1, 0.2, False)] * 9)
    assert [decision.give_up for decision in decisions] == [False] * 4 + [True]
    assert "the 5th time without ever being ready" in decisions[-1].reason


def test_a_bad_configuration_is_given_up_at_once() -> None:
    (decision,) = run([Exit(2, 0.2, False)] * 3)
    assert decision.give_up
    assert "configuration" in decision.reason


def test_the_reason_says_how_it_ended() -> None:
    assert "ended by signal 9 after 1.5 s, failure 1 in a row" in run([Exit(-9, 1.5, True)])[0].reason
    assert "ended with code 3" in run([Exit(3, 1.5, True)])[0].reason


@given(st.lists(EXITS, min_size=1, max_size=200))
def test_what_has_worked_is_never_given_up_and_waits_are_bounded(exits: list[Exit]) -> None:
    state, was_ready = RestartState(), False
    for exit in exits:
        decision, state = decide(exit, state, SETTINGS)
        was_ready = was_ready or exit.ready
        assert not (was_ready and decision.give_up)
        assert 0 <= decision.delay_s <= SETTINGS.longest_s
        assert decision.give_up or decision.delay_s >= SETTINGS.first_s


@given(st.integers(1, 10_000))
def test_no_number_of_failures_breaks_the_arithmetic(failures: int) -> None:
    decision, _ = decide(Exit(1, 0.0, True), RestartState(failures, True), SETTINGS)
    assert decision.delay_s <= SETTINGS.longest_s
