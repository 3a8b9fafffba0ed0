"""Who leaves host memory for disk, and who comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rouse_policy import demand, keep_alive
from rouse_policy.golden import line, replay
from rouse_policy.tiering import Copy, Decision, Settings, Snapshot, State, break_even_s, decide, loss

CAPACITY = 1000
# A second of waiting is worth ten seconds of all host memory, so 1,000 s of a hundredth of it.
SETTINGS = Settings(weight=10.0, min_idle_s=60.0)


def history(*gaps_s: float) -> keep_alive.State:
    state = keep_alive.State()
    for gap_s in gaps_s:
        state = keep_alive.learn(state, gap_s)
    return state


def copy(name: str, idle_s: float, *gaps_s: float, size: int = 10, in_memory: bool = True, in_use: str = "") -> Copy:
    return Copy(name, size, idle_s, history(*gaps_s), 1.0, in_memory, in_use)


def decided(*copies: Copy, free: int = CAPACITY, settings: Settings = SETTINGS) -> Decision:
    return decide(Snapshot(CAPACITY, free, copies), State(), settings, 0.0)[0]


def names(moves: tuple[object, ...]) -> list[str]:
    return [move.digest for move in moves]  # type: ignore[attr-defined]


def test_what_was_never_away_so_long_is_expected_to_stay_away_as_long_again() -> None:
    assert demand.expected_wait_s(history(1.0, 2.0), 100.0) == 100.0
    assert not demand.has_been_away_longer(history(1.0, 2.0), 100.0)


def test_only_gaps_longer_than_the_idle_time_tell_when_the_next_request_comes() -> None:
    gaps = history(1.0, 1.0, 1.0, 500.0)
    assert demand.has_been_away_longer(gaps, 100.0)
    # The bin of 500 s ends at 748 s.
    assert 400.0 < demand.expected_wait_s(gaps, 100.0) < 700.0
    assert demand.expected_wait_s(gaps, 100.0) > demand.expected_wait_s(gaps, 400.0)


def test_a_copy_leaves_once_the_next_request_is_further_away_than_its_return_is_worth() -> None:
    assert break_even_s(copy("a", 0.0), CAPACITY, SETTINGS) == 1000.0
    assert names(decided(copy("a", 999.0)).leave) == []
    decision = decided(copy("a", 1001.0))
    assert names(decision.leave) == ["a"]
    assert decision.leave[0].reason == (
        "idle for 1e+03 s, next request expected in 1e+03 s, its return takes 1 s and is worth 1e+03 s of its room"
    )


def test_of_two_that_are_as_idle_the_larger_leaves_first() -> None:
    decision = decided(copy("small", 500.0, size=10), copy("large", 500.0, size=100))
    assert names(decision.leave) == ["large"]
    assert loss(copy("large", 500.0, size=100)) < loss(copy("small", 500.0, size=10))


def test_nobody_leaves_who_is_in_use_was_used_just_now_or_where_the_rule_is_off() -> None:
    assert names(decided(copy("a", 5000.0, in_use="an instance serves it")).leave) == []
    # Its room is worth far more than its return, but it was used 59 s ago.
    assert names(decided(copy("a", 59.0, size=1000)).leave) == []
    assert names(decided(copy("a", 61.0, size=1000)).leave) == ["a"]
    assert names(decided(copy("a", 5000.0), settings=Settings(weight=0.0)).leave) == []


def test_who_comes_back_at_known_times_is_there_before_its_request() -> None:
    every_hour = (3600.0,) * 5
    assert names(decided(copy("a", 1000.0, *every_hour)).leave) == ["a"]
    early = decided(copy("a", 1100.0, *every_hour, in_memory=False))
    late = decided(copy("a", 3500.0, *every_hour, in_memory=False))
    assert (names(early.bring), names(late.bring)) == ([], ["a"])
    # It stays then, and leaves again when its time has passed by.
    assert names(decided(copy("a", 3500.0, *every_hour)).leave) == []
    assert names(decided(copy("a", 9000.0, *every_hour)).leave) == ["a"]


def test_nobody_is_brought_back_of_whom_nothing_is_known_or_into_room_that_is_not_there() -> None:
    assert names(decided(copy("a", 100.0, in_memory=False)).bring) == []
    soon = [copy(n, 450.0, 500.0, 500.0, in_memory=False) for n in "abc"]
    assert names(decided(*soon, free=25).bring) == ["a", "b"]


@given(
    st.lists(st.floats(0, 1e6), max_size=8),
    st.floats(0, 1e6),
    st.integers(1, CAPACITY),
    st.floats(1e-3, 100),
    st.floats(0, 1000),
)
def test_a_copy_never_leaves_and_comes_back_at_the_same_time(
    gaps: list[float], idle_s: float, size: int, return_s: float, weight: float
) -> None:
    settings = Settings(weight=weight)
    there = Copy("a", size, idle_s, history(*gaps), return_s)
    away = Copy("a", size, idle_s, history(*gaps), return_s, in_memory=False)
    leaves, comes = decided(there, settings=settings).leave, decided(away, settings=settings).bring
    assert not (leaves and comes)
    assert demand.expected_wait_s(there.gaps, idle_s) >= 0


@given(
    st.lists(st.tuples(st.integers(1, 400), st.floats(0, 1e4), st.booleans()), max_size=10), st.integers(0, CAPACITY)
)
def test_what_comes_back_fits_into_what_is_free(rows: list[tuple[int, float, bool]], free: int) -> None:
    copies = [copy(str(i), idle, idle + 50.0, size=size, in_memory=m) for i, (size, idle, m) in enumerate(rows)]
    decision = decided(*copies, free=free)
    sizes = {c.digest: c.size_bytes for c in copies}
    assert sum(sizes[digest] for digest in names(decision.bring)) <= free
    assert all(not c.in_memory for c in copies if c.digest in names(decision.bring))


def test_a_decision_can_be_made_again_from_its_line() -> None:
    snapshot = Snapshot(CAPACITY, CAPACITY, (copy("a", 2000.0, 3.0), copy("b", 450.0, 500.0, in_memory=False)))
    decision, _ = decide(snapshot, State(), SETTINGS, 5.0)
    assert names(decision.leave) == ["a"]
    assert replay(line("tiering", snapshot, State(), SETTINGS, 5.0, decision)).same
