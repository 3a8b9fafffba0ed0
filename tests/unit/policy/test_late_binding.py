"""Algorithm 1 over a node's links, measured heaviness, and the policies that it is compared with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_policy import binding, eviction, heaviness, keep_alive
from rouse_policy.interference import HOST, Mode, Settings, Snapshot, State, decide
from rouse_policy.topology import Topology

QUAD = Topology(
    (("g0", "g1"), ("g2", "g3")),
    {("g0", "g1"): 24e9, ("g0", "g2"): 24e9, ("g0", "g3"): 48e9, ("g1", "g2"): 48e9, ("g2", "g3"): 48e9},
)
SETTINGS = Settings(topology=QUAD)
DEVICES = ("g0", "g1", "g2", "g3")
SOME = st.lists(st.sampled_from(DEVICES), unique=True).map(tuple)


def chosen(available: tuple[str, ...], holders: tuple[str, ...] = (), **loading: bool) -> tuple[str | None, str]:
    decision, _ = decide(Snapshot("v", available, holders, loading), State(), SETTINGS, 0.0)
    return decision.device, decision.source


def test_where_the_model_is_and_nobody_works_it_runs() -> None:
    assert chosen(("g2", "g1"), ("g0", "g1")) == ("g1", "")


def test_from_a_busy_holder_over_the_fastest_link() -> None:
    assert chosen(("g1", "g3"), ("g0",)) == ("g3", "g0")
    assert chosen(("g1",), ("g0", "g2")) == ("g1", "g2")


def test_a_holder_without_a_link_is_no_source() -> None:
    assert chosen(("g1",), ("g3",)) == ("g1", HOST)


def test_from_the_host_beside_a_quiet_neighbour_then_a_light_one_then_any() -> None:
    assert chosen(("g1", "g3"), g0=False) == ("g3", HOST)
    assert chosen(("g1", "g3"), g0=True, g2=False) == ("g3", HOST)
    assert chosen(("g1", "g3"), g0=True, g2=True) == ("g1", HOST)


@given(SOME, SOME, st.dictionaries(st.sampled_from(DEVICES), st.booleans()), st.sampled_from(list(Mode)))
def test_what_is_chosen_is_idle_and_its_source_holds_the_model(
    available: tuple[str, ...], holders: tuple[str, ...], loading: dict[str, bool], mode: Mode
) -> None:
    snapshot = Snapshot("v", available, holders, loading, bound="g0")
    decision, _ = decide(snapshot, State(7), Settings(mode, QUAD), 0.0)
    if decision.device is None:
        assert not available or (mode is Mode.BOUND and "g0" not in available)
        return
    assert decision.device in available
    if not decision.source:
        assert decision.device in holders
    elif decision.source != HOST:
        assert decision.source in holders
        assert QUAD.bandwidth(decision.device, decision.source) > 0
    assert decision.reason


@given(st.integers(0, 2**64 - 1))
def test_chance_is_the_same_for_the_same_seed(seed: int) -> None:
    def play() -> list[str | None]:
        state, found = State(seed), []
        for _ in range(20):
            decision, state = decide(Snapshot("v", DEVICES, ()), state, Settings(Mode.RANDOM), 0.0)
            found.append(decision.device)
        return found

    assert play() == play()


def test_chance_takes_every_device() -> None:
    state, found = State(1), set()
    for _ in range(100):
        decision, state = decide(Snapshot("v", DEVICES, ()), state, Settings(Mode.RANDOM), 0.0)
        found.add(decision.device)
    assert found == set(DEVICES)


def test_a_topology_names_what_does_not_fit() -> None:
    QUAD.check(DEVICES)
    with pytest.raises(ValueError, match="'g3' is not among g0, g1, g2"):
        QUAD.check(DEVICES[:3])
    with pytest.raises(ValueError, match="behind 2 switches"):
        Topology((("g0",), ("g0", "g1"))).check(DEVICES)


def test_heavy_is_what_a_swap_slows_down() -> None:
    measured = heaviness.Measured()
    decision, _ = heaviness.decide(measured, None, heaviness.Settings(), 0.0)
    assert not decision.heavy
    for seconds, swapped in ((0.043, False), (0.144, True)):
        measured = heaviness.learn(measured, seconds, swapped, heaviness.Settings())
    decision, _ = heaviness.decide(measured, None, heaviness.Settings(), 0.0)
    assert decision.heavy
    assert decision.ratio == pytest.approx(3.35, abs=0.01)
    assert "144 ms swapped over 43 ms resident" in decision.reason


def test_light_models_leave_before_heavy_ones_and_extra_copies_before_both() -> None:
    candidates = (
        eviction.Candidate("heavy-old", 10, 0, 0.0, 1.0, heavy=True),
        eviction.Candidate("light-new", 10, 0, 0.0, 9.0),
        eviction.Candidate("heavy-copy", 10, 0, 0.0, 8.0, heavy=True, is_copy=True),
    )

    def leaving(need: int, order: eviction.Order) -> list[str]:
        snapshot = eviction.Snapshot(30, 0, 0, candidates, eviction.Claim(1, need, 0))
        decision, _ = eviction.decide(snapshot, eviction.State(), eviction.Settings(order=order), 10.0)
        return [victim.version for victim in decision.victims]

    assert leaving(10, eviction.Order.POOL) == ["heavy-copy"]
    assert leaving(20, eviction.Order.POOL) == ["heavy-copy", "light-new"]
    assert leaving(30, eviction.Order.POOL) == ["heavy-copy", "light-new", "heavy-old"]
    assert leaving(10, eviction.Order.LRU) == ["heavy-old"]


def test_a_function_is_bound_where_most_is_free_and_nowhere_without_room() -> None:
    free = (("g0", 50), ("g1", 70))
    assert binding.decide(binding.Snapshot(60, free), binding.State(), binding.Settings(), 0.0)[0].device == "g1"
    refused, _ = binding.decide(binding.Snapshot(71, free), binding.State(), binding.Settings(), 0.0)
    assert refused.device is None
    assert "70 B" in refused.reason


@given(st.lists(st.floats(0, 2000), min_size=5, max_size=80), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_lifespan_covers_its_share_of_the_gaps(gaps: list[float], percentile: float) -> None:
    settings, state = keep_alive.Settings(percentile=percentile), keep_alive.State()
    for gap in gaps:
        state = keep_alive.learn(state, gap)
    decision, _ = keep_alive.decide(None, state, settings, 0.0)
    assert settings.min_s <= decision.keep_s <= settings.max_s
    if decision.keep_s < settings.max_s:
        assert sum(gap <= decision.keep_s for gap in gaps) >= percentile * len(gaps) - 1e-9


@given(st.lists(st.floats(1, 600), min_size=5, max_size=80), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_lifespan_of_known_gaps_is_their_percentile(gaps: list[float], percentile: float) -> None:
    found = keep_alive.lifespan(gaps, keep_alive.Settings(percentile=percentile))
    assert found == pytest.approx(float(np.percentile(gaps, percentile * 100)))


def test_without_a_history_the_longest_lifespan_holds() -> None:
    decision, _ = keep_alive.decide(None, keep_alive.State(), keep_alive.Settings(), 0.0)
    assert decision.keep_s == keep_alive.Settings().max_s
    assert keep_alive.lifespan([], keep_alive.Settings()) == keep_alive.Settings().max_s
