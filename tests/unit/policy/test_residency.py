"""What leaves a tier for a newcomer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rouse_policy.residency import Decision, Entry, Settings, Snapshot, State, decide


def decided(capacity: int, used: int, need: int, *entries: Entry) -> Decision:
    return decide(Snapshot(capacity, used, entries, need), State(), Settings(), 0.0)[0]


def test_with_room_nothing_leaves() -> None:
    assert decided(100, 50, 50, Entry("a", 50, 0.0)) == Decision(
        True, (), "needs 50 B; 50 of 100 B used, 50 B of 1 entries idle"
    )


def test_the_least_recently_used_leave_and_no_more_than_needed() -> None:
    decision = decided(100, 90, 30, Entry("a", 30, 3.0), Entry("b", 10, 1.0), Entry("c", 50, 2.0))
    assert decision.drop == ("b", "c")


def test_what_is_in_use_stays_and_without_room_nobody_leaves() -> None:
    decision = decided(100, 90, 60, Entry("a", 60, 0.0, "an instance serves it"), Entry("b", 30, 1.0))
    assert not decision.fits
    assert decision.drop == ()


@given(
    st.integers(1, 200),
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(1, 50), st.floats(0, 9), st.booleans()), max_size=8),
)
def test_whatever_leaves_makes_it_fit(capacity: int, need: int, rows: list[tuple[int, float, bool]]) -> None:
    entries = tuple(Entry(str(i), size, at, "used" if busy else "") for i, (size, at, busy) in enumerate(rows))
    used = sum(e.size_bytes for e in entries)
    decision = decided(capacity, used, need, *entries)
    dropped = [e for e in entries if e.digest in decision.drop]
    assert not any(e.in_use for e in dropped)
    freed = sum(e.size_bytes for e in dropped)
    assert (used - freed + need <= capacity) == decision.fits or (not decision.fits and not dropped)
    idle = sum(e.size_bytes for e in entries if not e.in_use)
    assert decision.fits == (used - idle + need <= capacity)
