"""Counts that wait for Redis: nothing is lost within the bound, nothing grows beyond it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rouse_cache.pending import Pending

ADDS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abcdef"), st.integers(0, 3), st.integers(0, 3)))


def totals(pending: Pending) -> Counter[tuple[int, str]]:
    taken = pending.take()
    return Counter({(s, f): c.arrivals + c.completions for s, of in taken.seconds.items() for f, c in of.items()})


@given(ADDS, ADDS)
def test_what_is_given_back_is_not_lost(before: list[Any], after: list[Any]) -> None:
    pending, want = Pending(limit=1000), Counter[tuple[int, str]]()
    for second, function, arrivals, completions in before:
        assert pending.add(second, function, arrivals, completions)
        want[second, function] += arrivals + completions
    taken = pending.take()
    assert len(pending) == 0
    for second, function, arrivals, completions in after:
        assert pending.add(second, function, arrivals, completions)
        want[second, function] += arrivals + completions
    pending.give_back(taken)
    assert len(pending) == len(want)
    assert totals(pending) == want


@given(ADDS, st.integers(1, 5))
def test_never_more_than_the_limit_and_the_rest_is_counted_as_refused(adds: list[Any], limit: int) -> None:
    pending, refused = Pending(limit), 0
    for second, function, arrivals, completions in adds:
        refused += not pending.add(second, function, arrivals, completions)
        assert len(pending) <= limit
    assert pending.take_refused() == refused
    assert pending.take_refused() == 0


@given(ADDS, st.integers(0, 5), st.sampled_from("abcdef"))
def test_dropping_and_forgetting_keep_the_count_of_entries(adds: list[Any], second: int, function: str) -> None:
    pending = Pending(limit=1000)
    for at, name, arrivals, completions in adds:
        pending.add(at, name, arrivals, completions)
        pending.arrived(name, float(at))
    dropped = pending.drop_before(second)
    assert dropped == len({(at, name) for at, name, *_ in adds if at < second})
    pending.forget(function)
    entries = len(pending)
    taken = pending.take()
    assert sum(map(len, taken.seconds.values())) == entries
    assert function not in taken.last_arrivals
    assert all(at >= second and function not in of for at, of in taken.seconds.items())


def test_the_latest_arrival_wins_whatever_the_order() -> None:
    pending = Pending(10)
    pending.add(1, "f", arrivals=1)
    pending.arrived("f", 7.5)
    pending.arrived("f", 7.0)
    assert pending.take().last_arrivals == {"f": 7.5}
