"""Shares of tenants: each gets what its weight says, and a full queue makes room for who has less than that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_policy import fairness
from rouse_policy.fairness import Holding, Tags, Turn, ahead, displace, order

HOLDINGS = st.dictionaries(st.sampled_from("abcd"), st.builds(Holding, st.integers(1, 60), st.integers(0, 5)))


def served(weights: dict[str, int], costs: dict[str, float], rounds: int) -> dict[str, float]:
    """What each tenant gets while all have always something to do."""
    tags = dict.fromkeys(weights, 0.0)
    got = dict.fromkeys(weights, 0.0)
    for _ in range(rounds):
        tenant = min(tags, key=lambda name: (tags[name], name))
        got[tenant] += costs[tenant]
        tags[tenant] = fairness.after(tags[tenant], costs[tenant], weights[tenant])
    return got


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 5), min_size=2),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 8), min_size=3),
)
def test_service_is_by_weight_whatever_a_request_costs(weights: dict[str, int], costs: dict[str, int]) -> None:
    got = served(weights, {name: float(cost) for name, cost in costs.items()}, 400)
    normal = {tenant: got[tenant] / weight for tenant, weight in weights.items()}
    # The lag between two tenants is never more than a request of each (Goyal et al., theorem 1).
    bound = sum(costs[tenant] / weight for tenant, weight in weights.items())
    assert max(normal.values()) - min(normal.values()) <= bound


def test_who_was_away_has_saved_nothing_up() -> None:
    assert fairness.begins(tag=3.0, virtual_time=10.0) == 10.0
    assert fairness.begins(tag=12.0, virtual_time=10.0) == 12.0


TURNS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), max_size=40)


@given(TURNS, st.dictionaries(st.sampled_from("abcd"), st.floats(0, 50), min_size=4), st.floats(0.001, 10))
def test_turns_keep_to_arrival_within_a_tenant_and_to_shares_between_them(
    waiting: list[tuple[str, int]], tags: dict[str, float], cost: float
) -> None:
    weights = {tenant: max(weight, 1) for tenant, weight in waiting}
    turns = [Turn(ticket, tenant, weights[tenant]) for ticket, (tenant, _) in enumerate(waiting)]
    found = order(turns, tags, cost)
    assert sorted(found) == [turn.ticket for turn in turns]
    by_ticket = {turn.ticket: turn for turn in turns}
    left = {tenant: [t.ticket for t in turns if t.tenant == tenant] for tenant in weights}
    at = {tenant: tags[tenant] for tenant in weights}
    for ticket in found:
        tenant = by_ticket[ticket].tenant
        assert ticket == left[tenant].pop(0)
        # Nobody who still waits had less.
        assert all(at[tenant] <= at[other] for other, rest in left.items() if rest)
        at[tenant] = fairness.after(at[tenant], cost, weights[tenant])


def test_among_equals_who_came_first_goes_first() -> None:
    turns = [Turn(3, "b", 1), Turn(1, "b", 1), Turn(2, "a", 1), Turn(4, "a", 1)]
    assert order(turns, {"a": 0.0, "b": 0.0}, 1.0) == [1, 2, 3, 4]
    assert order(turns, {"a": 0.0, "b": 1.5}, 1.0) == [2, 4, 1, 3]
    assert order([], {}, 1.0) == []


def test_tags_of_tenants_that_are_away_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "MAX_TAGS", 10)
    tags = Tags()
    for number in range(100):
        tags.keep(f"t{number}", fairness.after(tags.of(f"t{number}"), number, 1))
        assert len(tags) <= 10
    # Those with the most to wait for are remembered longest.
    assert tags.of("t99") == 99
    tags.served(1000.0)
    assert tags.of("t99") == tags.of("unknown") == 1000


def test_what_was_charged_too_little_is_made_up_for() -> None:
    tags = Tags()
    tags.keep("a", 2.0)
    tags.correct("a", 1.5)
    tags.correct("unknown", 1.0)
    assert (tags.of("a"), tags.of("unknown")) == (3.5, 0.0)


def test_priorities_have_a_middle_and_ends() -> None:
    assert [fairness.level(priority) for priority in (0, 1, 5, 9, 4_000_000_000)] == [5, 1, 5, 9, 9]


@given(HOLDINGS, st.sampled_from("abcde"), st.integers(0, 5))
def test_only_who_has_too_much_gives_way_and_only_to_who_has_too_little(
    holdings: dict[str, Holding], newcomer: str, weight: int
) -> None:
    capacity = max(1, sum(holding.waiting for holding in holdings.values()))
    given_way = displace(holdings, newcomer, weight, capacity)
    assert given_way.reason
    if given_way.tenant is None:
        return
    weights = {tenant: max(holding.weight, 1) for tenant, holding in holdings.items()} | {newcomer: max(weight, 1)}
    share = {tenant: capacity * part / sum(weights.values()) for tenant, part in weights.items()}
    mine = holdings[newcomer].waiting if newcomer in holdings else 0
    assert given_way.tenant != newcomer
    assert mine + 1 <= max(share[newcomer], 1)
    victim = holdings[given_way.tenant]
    assert victim.waiting > share[given_way.tenant]
    # So nobody can be displaced for ever by taking turns: the victim still has at least its share, or one.
    assert victim.waiting - 1 >= min(share[given_way.tenant], 1) - 1


def test_a_flood_makes_room_for_somebody_else() -> None:
    flood = {"loud": Holding(10, 1)}
    assert displace(flood, "quiet", 1, 10).tenant == "loud"
    assert displace(flood, "loud", 1, 10).tenant is None
    even = {"loud": Holding(5, 1), "quiet": Holding(5, 1)}
    assert displace(even, "quiet", 1, 10).tenant is None
    assert displace(even, "quiet", 3, 10).tenant == "loud"


@given(HOLDINGS, st.sampled_from("abcde"), st.integers(0, 5))
def test_nobody_has_more_before_it_than_waits(holdings: dict[str, Holding], newcomer: str, weight: int) -> None:
    waiting = sum(holding.waiting for holding in holdings.values())
    mine = holdings[newcomer].waiting if newcomer in holdings else 0
    assert mine <= ahead(holdings, newcomer, weight) <= waiting


def test_behind_a_flood_a_light_tenant_waits_for_its_share_only() -> None:
    assert ahead({"loud": Holding(1000, 1)}, "quiet", 1) == 1
    assert ahead({"loud": Holding(1000, 1), "quiet": Holding(3, 1)}, "quiet", 1) == 7
    assert ahead({"loud": Holding(1000, 1)}, "loud", 1) == 1000
