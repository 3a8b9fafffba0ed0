"""Admission: who is let in, held, or told when to come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rouse_policy.admission import Settings, Snapshot, State, Verdict, decide, learn

SETTINGS = Settings(max_held=10)
snapshots = st.builds(Snapshot, remaining_s=st.floats(-10, 1000), ready=st.booleans(), held=st.integers(0, 30))
states = st.builds(State, typical_wake_s=st.floats(0, 1e6))


@given(snapshots, states)
def test_never_more_are_held_than_may_be_and_never_without_time(snapshot: Snapshot, state: State) -> None:
    decision, after = decide(snapshot, state, SETTINGS, 0.0)
    assert after == state
    enough = snapshot.remaining_s >= SETTINGS.min_remaining_s
    if not enough:
        assert decision.verdict is Verdict.TOO_LATE
    elif snapshot.ready:
        assert decision.verdict is Verdict.ADMIT
    else:
        assert decision.verdict is (Verdict.HOLD if snapshot.held < SETTINGS.max_held else Verdict.HOLD_FULL)
    assert (decision.retry_after_s is not None) == (decision.verdict is Verdict.HOLD_FULL)
    assert decision.reason


@given(states)
def test_the_time_to_come_back_is_within_its_bounds(state: State) -> None:
    decision, _ = decide(Snapshot(10, False, 10), state, SETTINGS, 0.0)
    assert decision.retry_after_s is not None
    assert SETTINGS.min_retry_s <= decision.retry_after_s <= SETTINGS.max_retry_s


def test_the_reason_names_the_numbers() -> None:
    decision, _ = decide(Snapshot(10, False, 10), State(2.0), SETTINGS, 0.0)
    assert decision.reason == "10 requests are held for functions that wake, 10 is the limit; a wake-up takes 2 s"
    assert decision.retry_after_s == 2.0
    late, _ = decide(Snapshot(0.0005, True, 0), State(), SETTINGS, 0.0)
    assert late.reason == "0.5 ms are left until the deadline, at least 1 ms are needed"


def test_wake_ups_teach_how_long_to_wait() -> None:
    state = State(1.0)
    for _ in range(50):
        state = learn(state, 4.0, SETTINGS)
    assert abs(state.typical_wake_s - 4.0) < 0.01
    assert learn(State(1.0), 2.0, SETTINGS).typical_wake_s == 1.3
