"""What scheduling brings about on a node in virtual time."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rouse_policy import eviction, interference
from rouse_policy.interference import Mode
from rouse_policy.scheduling import Model, Settings, fits_beside
from rouse_policy.topology import Topology
from rouse_testkit.pools import FAR
from rouse_testkit.virtual_node import Node


def test_a_request_for_memory_is_served_although_a_hot_model_is_never_idle() -> None:
    node = Node(
        {"d0": 50}, {v: Model(v, 40, 0, gap_s=0.01) for v in "ab"}, {"ia": "a", "ib": "b"}, Settings(patience_s=0.5)
    )
    # One model's requests come as fast as they can be executed, for ten seconds, and a few wait at any time.
    for step in range(330):
        node.arrive(max(0, step - 3) * node.execute_s, "a")
    late = node.arrive(0.995, "b")
    node.run(30.0)
    assert node.waited(late) <= 0.5 + node.execute_s + node.load_s + 1e-6
    # Until then the resident model's queue ran: it was not turned out at once.
    assert node.waited(late) >= 0.5
    assert len(node.granted) == 331


def test_two_hot_models_on_one_device_do_not_swap_at_every_request() -> None:
    def swaps(settings: Settings) -> int:
        node = Node({"d0": 50}, {v: Model(v, 40, 0, gap_s=0.05) for v in "ab"}, {"ia": "a", "ib": "b"}, settings)
        for step in range(200):
            node.arrive(step * 0.05, "ab"[step % 2])
        node.run(60.0)
        assert len(node.granted) == 200
        return node.swaps

    kept = swaps(Settings(patience_s=0.5, eviction=eviction.Settings(min_residency_s=0.25)))
    eager = swaps(Settings(patience_s=0.001, eviction=eviction.Settings(min_residency_s=0.0)))
    assert kept < eager / 3


def test_models_that_have_too_many_requests_do_not_evict_each_others_copies() -> None:
    # Two devices, exactly full, and 1.05 times the requests that both can execute; seen live with copies of "a" and "b"
    # that evicted each other, and here with 123 swaps.
    rates, chance = {"a": 30, "b": 30, "c": 5, "d": 5}, random.Random(1)
    models = {v: Model(v, 50, 0, gap_s=1 / rate) for v, rate in rates.items()}
    node = Node({"d0": 100, "d1": 100}, models, {f"i{v}{n}": v for v in rates for n in "12"}, Settings())
    for version, rate in rates.items():
        when = chance.expovariate(rate)
        while when < 10.0:
            node.arrive(when, version)
            when += chance.expovariate(rate)
    node.run(60.0)
    assert len(node.granted) == len(node.tickets)
    # Each of the four once, and a second copy of a hot one now and then.
    assert node.swaps <= 12


def test_a_model_with_too_many_requests_for_a_device_takes_the_place_of_rare_ones() -> None:
    models = {"a": Model("a", 50, 0, gap_s=0.02)} | {v: Model(v, 50, 0, gap_s=1.0) for v in "bcd"}
    node = Node({"d0": 100, "d1": 100}, models, {"a1": "a", "a2": "a", "b": "b", "c": "c", "d": "d"}, Settings())
    # 1.5 times what one device can execute.
    for number in range(200):
        node.arrive(number / 50, "a")
    for number, version in enumerate("bcd" * 4):
        node.arrive(number / 3, version)
    node.run(60.0)
    assert max(node.waited(name) for name in node.granted) < 0.8
    # No more than two for each request that may have found its model gone, and the first ones.
    assert node.swaps <= 5 + 2 * 12


arrivals = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 4)), min_size=1, max_size=60)


@settings(max_examples=150, deadline=None)
@given(
    arrivals,
    st.lists(st.integers(50, 160), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30), st.integers(0, 3)), min_size=5, max_size=5),
    st.integers(1, 2),
    st.sampled_from([Mode.INTERFERENCE, Mode.RANDOM]),
    st.sampled_from([{}, {("d0", "d1"): 2.0}, {("d0", "d1"): 1.0, ("d0", "d2"): 2.0}]),
)
def test_everybody_is_served_and_memory_always_fits(
    requests: list[tuple[float, int]],
    capacities: list[int],
    shapes: list[tuple[int, int, int]],
    parallel: int,
    mode: Mode,
    links: dict[tuple[str, str], float],
) -> None:
    devices = {f"d{i}": c for i, c in enumerate(capacities)}
    models: dict[str, Model] = {}
    instances: dict[str, str] = {}
    for number, (size, working, count) in enumerate(shapes):
        version = str(number)
        # What has no weights is no tape's.
        count = count or (size == 0)
        working = min(working, max(capacities) - size)
        heavy = ("d0", "d1") if number % 3 else ()
        models[version] = Model(version, size, working, gap_s=0.01 if number % 2 else FAR, heavy_on=heavy)
        instances |= {f"i{number}.{k}": version for k in range(count)}
    chosen = interference.Settings(mode, Topology((("d0", "d1"),), links))
    node = Node(devices, models, instances, Settings(loads_per_device=parallel, interference=chosen))
    tickets = [node.arrive(when, str(version)) for when, version in sorted(requests)]
    node.run(1000.0)
    assert sorted(node.granted) == sorted(tickets), "somebody waits for ever"
    # Patience, and for each earlier request at most one execution and one load on the only device.
    for place, ticket in enumerate(tickets):
        bound = 0.5 + (place + 1) * (node.load_s + node.execute_s) + 0.5
        assert node.waited(ticket) <= bound


@settings(max_examples=150, deadline=None)
@given(
    arrivals,
    st.lists(st.integers(60, 160), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30), st.booleans()), min_size=5, max_size=5),
)
def test_pinned_models_come_first_and_stay_and_everybody_else_is_served(
    requests: list[tuple[float, int]], capacities: list[int], shapes: list[tuple[int, int, bool]]
) -> None:
    models: dict[str, Model] = {}
    for number, (size, working, pinned) in enumerate(shapes):
        working = min(working, max(capacities) - size)
        models[str(number)] = Model(str(number), size, working, pinned=pinned)
    devices = {f"d{i}": c for i, c in enumerate(capacities)}
    pins = [m for m in models.values() if m.pinned]
    largest = max(
        (m for m in models.values() if not m.pinned), key=lambda m: m.size_bytes + m.working_bytes, default=None
    )
    roomy = fits_beside(largest or Model("", 0, 0), pins, max(capacities))
    stay = frozenset(m.version for m in pins) if roomy else frozenset[str]()
    node = Node(devices, models, {f"i{v}": v for v in models}, Settings(), stay=stay)
    node.at(0.0, "wake")
    tickets = [node.arrive(when, str(version)) for when, version in sorted(requests)]
    node.run(1000.0)
    resident = {v for v, _ in node.residents if models[v].pinned}
    # What was brought has left room for the largest of the others, so nobody waits for ever; a pinned model that
    # would have left none is served like the others where there is room.
    served = {node.tickets.index(name) for name in node.granted}
    for place, name in enumerate(node.tickets):
        version = str(sorted(requests)[tickets.index(name)][1])
        assert place in served or (models[version].pinned and version not in resident), "somebody waits for ever"
    assert stay <= resident, "there was room for all that are pinned"
