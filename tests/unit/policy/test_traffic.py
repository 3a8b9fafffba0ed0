"""Shares of traffic: exact over many requests, the same for a repetition, stable when a share grows."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rouse_policy.traffic import Share, choose


@st.composite
def divided(draw: st.DrawFn) -> list[Share]:
    cuts = sorted(draw(st.sets(st.integers(1, 99), max_size=4)))
    numbers = draw(st.lists(st.integers(1, 50), min_size=len(cuts) + 1, max_size=len(cuts) + 1, unique=True))
    return [Share(n, high - low) for n, low, high in zip(numbers, [0, *cuts], [*cuts, 100], strict=True)]


@given(divided(), st.text(max_size=20), st.randoms())
def test_a_request_always_lands_on_the_same_version_which_has_traffic(shares: list[Share], id_: str, random) -> None:
    chosen = choose("f", shares, id_)
    random.shuffle(shares)
    assert choose("f", shares, id_) == chosen
    assert chosen in {share.version for share in shares}


def test_shares_are_kept_over_many_requests() -> None:
    shares = [Share(1, 70), Share(2, 25), Share(5, 5)]
    counts = Counter(choose("f", shares, f"request {i}") for i in range(20_000))
    for share in shares:
        assert abs(counts[share.version] / 200 - share.percent) < 1.5


@given(st.integers(1, 98), st.text(max_size=20))
def test_a_new_version_keeps_its_requests_when_its_share_grows(percent: int, id_: str) -> None:
    before = choose("f", [Share(1, 100 - percent), Share(2, percent)], id_)
    after = choose("f", [Share(1, 99 - percent), Share(2, percent + 1)], id_)
    assert after >= before


def test_functions_do_not_share_their_luck() -> None:
    shares = [Share(1, 50), Share(2, 50)]
    assert len({choose(f"f{i}", shares, "one id") for i in range(64)}) == 2


def test_all_to_one() -> None:
    assert choose("f", [Share(3, 100)], "") == 3
