"""Shares of tenants: each gets what its weight says, and a full queue makes room for who has less than that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rouse_policy import fairness
from rouse_policy.fairness import Holding, ahead, displace

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
