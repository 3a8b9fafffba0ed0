"""Who leaves a device for whom."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_policy.eviction import Candidate, Claim, Decision, Settings, Snapshot, State, decide

SETTINGS = Settings(min_residency_s=1.0)


def decided(
    candidates: list[Candidate], claim: Claim, capacity: int = 100, now: float = 100.0, **kept: Any
) -> Decision:
    kept_bytes, kept_working = kept.get("kept_bytes", 0), kept.get("kept_working_bytes", 0)
    snapshot = Snapshot(capacity, kept_bytes, kept_working, tuple(candidates), claim)
    return decide(snapshot, State(), SETTINGS, now)[0]


def resting(version: str, size: int = 40, **more: Any) -> Candidate:
    return Candidate(
        version, size, more.pop("working_bytes", 0), more.pop("loaded_at", 0.0), more.pop("used", 0.0), **more
    )


def leaving(decision: Decision) -> list[str]:
    return [victim.version for victim in decision.victims]


def test_nobody_leaves_where_there_is_room() -> None:
    decision = decided([resting("a")], Claim(1, 60, 0))
    assert decision.fits
    assert not decision.victims


def test_the_least_recently_used_leaves() -> None:
    decision = decided([resting("a", used=9), resting("b", used=5)], Claim(1, 50, 0))
    assert leaving(decision) == ["b"]
    assert "95.000 s" in decision.victims[0].reason


def test_a_copy_leaves_before_a_last_one_however_recent() -> None:
    decision = decided([resting("a", used=1), resting("b", used=99, is_copy=True)], Claim(1, 50, 0))
    assert leaving(decision) == ["b"]


def test_no_more_leave_than_needed() -> None:
    candidates = [resting("old", 10, used=1), resting("older-small", 10, used=0), resting("big", 80, used=5)]
    assert leaving(decided(candidates, Claim(1, 80, 0))) == ["big"]


def test_working_memory_counts_and_comes_free_with_its_model() -> None:
    hungry, plain = resting("hungry", 10, working_bytes=50, used=5), resting("plain", 10, used=9)
    # 20 + 40 + the largest working memory is 110: without the hungry one it is 90.
    assert leaving(decided([plain, hungry], Claim(1, 40, 40))) == ["hungry"]
    assert not decided([], Claim(1, 40, 0), kept_bytes=20, kept_working_bytes=50).fits


def test_a_model_is_spared_for_an_earlier_request_even_of_an_overdue_claim() -> None:
    decision = decided([resting("a", 80, first_turn=3)], Claim(7, 60, 0, overdue=True))
    assert not decision.fits
    assert not decision.victims
    assert "whose turn is earlier" in decision.reason


def test_queued_requests_of_a_resident_run_first_until_the_claim_is_overdue() -> None:
    candidates = [resting("a", 80, first_turn=9)]
    assert not decided(candidates, Claim(7, 60, 0)).fits
    overdue = decided(candidates, Claim(7, 60, 0, overdue=True))
    assert leaving(overdue) == ["a"]
    assert "overdue" in overdue.victims[0].reason


def test_a_hot_model_stays_for_a_while_after_its_load() -> None:
    hot = resting("a", 80, loaded_at=99.5, gap_s=0.2)
    decision = decided([hot], Claim(7, 60, 0))
    assert not decision.fits
    assert decision.retry_at == 100.5
    assert leaving(decided([hot], Claim(7, 60, 0), now=100.5)) == ["a"]
    assert leaving(decided([hot], Claim(7, 60, 0, overdue=True))) == ["a"]


def test_a_cold_model_need_not_stay() -> None:
    assert leaving(decided([resting("a", 80, loaded_at=99.9, gap_s=30.0)], Claim(7, 60, 0))) == ["a"]


def test_who_waits_for_another_device_evicts_copies_only() -> None:
    claim = Claim(7, 60, 0, may_evict_last=False)
    assert not decided([resting("a", 80)], claim).fits
    assert leaving(decided([resting("a", 80, is_copy=True)], claim)) == ["a"]


def test_a_further_copy_takes_nothing_that_would_soon_come_back_however_late_it_is() -> None:
    claim = Claim(7, 60, 0, overdue=True, further=True, gap_s=0.05)
    for copy in (False, True):
        waited_for = decided([resting("a", 80, first_turn=9, is_copy=copy)], claim)
        assert not waited_for.fits
        assert "a request waits for it" in waited_for.reason
        used = resting("a", 80, used=99.9, gap_s=0.1, is_copy=copy)
        assert decided([used], claim).retry_at == pytest.approx(100.2)
        assert leaving(decided([used], claim, now=100.25)) == ["a"]
        loaded = resting("a", 80, loaded_at=99.5, is_copy=copy)
        assert decided([loaded], claim).retry_at == 100.5
        assert leaving(decided([loaded], claim, now=100.5)) == ["a"]
    # Not so a first copy: without it its requests are not answered at all.
    assert leaving(decided([resting("a", 80, used=99.9, gap_s=0.1)], Claim(7, 60, 0))) == ["a"]


def test_a_further_copy_takes_the_place_of_what_is_asked_for_much_more_rarely() -> None:
    claim = Claim(7, 60, 0, further=True, gap_s=0.05)
    assert leaving(decided([resting("a", 80, used=99.9, gap_s=0.5)], claim)) == ["a"]
    assert not decided([resting("a", 80, used=99.9, gap_s=0.49)], claim).fits
    # Of who was asked for once nobody knows that it is asked for often.
    assert not decided([resting("a", 80, used=99.9, gap_s=0.5)], Claim(7, 60, 0, further=True)).fits


def test_a_pinned_model_stays_but_for_a_copy_of_it() -> None:
    claim = Claim(1, 60, 0, overdue=True)
    refused = decided([resting("a", 80, pinned=True)], claim)
    assert not refused.fits
    assert "a: pinned" in refused.reason
    assert leaving(decided([resting("a", 80, pinned=True, is_copy=True)], claim)) == ["a"]
    assert leaving(decided([resting("a", 40, pinned=True, used=1), resting("b", 40, used=9)], claim)) == ["b"]


candidates = st.lists(
    st.builds(
        Candidate,
        version=st.uuids().map(str),
        size_bytes=st.integers(1, 50),
        working_bytes=st.integers(0, 20),
        loaded_at=st.floats(90, 100),
        last_used_at=st.floats(90, 100),
        gap_s=st.sampled_from([0.1, 10.0, float("inf")]),
        is_copy=st.booleans(),
        first_turn=st.none() | st.integers(1, 20),
        pinned=st.booleans(),
    ),
    max_size=8,
)


@given(
    candidates, st.integers(1, 100), st.integers(0, 40), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([0.01, 1.0, float("inf")]),
)  # fmt: skip
def test_what_is_decided_always_fits_and_is_allowed(
    present: list[Candidate], size: int, working: int, overdue: bool, last: bool, further: bool, gap_s: float
) -> None:
    claim = Claim(10, size, working, overdue, last, further, gap_s)
    capacity = 200
    decision = decided(present, claim, capacity)
    gone = set(leaving(decision))
    assert decision.fits or not gone
    for candidate in present:
        if candidate.version in gone:
            assert candidate.first_turn is None or candidate.first_turn >= 10
            assert candidate.is_copy or (last and not candidate.pinned)
            if further:
                assert candidate.first_turn is None
                assert candidate.loaded_at <= 99.0
                unused_s = 100.0 - candidate.last_used_at
                assert (
                    candidate.gap_s in (math.inf, unused_s / 3)
                    or unused_s > 3 * candidate.gap_s
                    or candidate.gap_s >= 10 * gap_s
                )
    staying = [c for c in present if c.version not in gone]

    def fits(stay: list[Candidate]) -> bool:
        return sum(c.size_bytes for c in stay) + size + max([working, *(c.working_bytes for c in stay)]) <= capacity

    assert fits(staying) or not decision.fits
    for candidate in present:
        if candidate.version in gone:
            assert not fits([*staying, candidate]), "a victim too many"
