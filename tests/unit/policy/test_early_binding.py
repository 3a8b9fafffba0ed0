"""Early binding on a node: single decisions, and a node in virtual time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rouse_policy.scheduling import (
    Binding,
    Decision,
    Model,
    Phase,
    Refusal,
    Resident,
    Settings,
    Snapshot,
    State,
    decide,
)
from rouse_testkit.pools import NOW, device, loads, resting, snapshot, waiter
from rouse_testkit.virtual_node import Node

EARLY = Settings(binding=Binding.EARLY)


def early(view: Snapshot) -> Decision:
    return decide(view, State(), EARLY, NOW)[0]


def test_early_binding_takes_the_device_with_most_free_memory_and_evicts_nothing_for_it() -> None:
    view = snapshot([device("d0", 100), device("d1", 90)], [waiter(1)], [resting("b", "d0")])
    assert loads(early(view)) == [("a", "d1")]
    # Idle or not does not matter, only memory does.
    assert loads(early(replace(view, devices=(device("d0", 140), device("d1", 90))))) == [("a", "d0")]
    full = early(replace(view, devices=(device("d0", 79), device("d1", 39))))
    assert full.loads == ()
    assert full.refusals == (Refusal("a", "needs 40 B, most is free on d0: 39 B"),)
    assert "1 models find no room" in full.reason


def test_what_is_bound_is_waited_for_although_another_device_is_idle() -> None:
    executing = Resident("b", "d0", Phase.EXECUTING)
    for mine in (resting("a", "d0"), Resident("a", "d0", Phase.LEAVING)):
        view = snapshot([device("d0", busy=True), device("d1")], [waiter(1, waited=90)], [executing, mine])
        assert decide(view, State(), EARLY, NOW) == (Decision((), (), None, "1 wait, 0 start, 0 loads begin"), State())


def test_working_memory_counts_where_a_model_is_bound() -> None:
    models = {"a": Model("a", 40, 20), "b": Model("b", 40, 10)}
    view = snapshot([device("d0", 100)], [waiter(1)], [resting("b")], None, **models)
    assert loads(early(view)) == [("a", "d0")]
    assert early(replace(view, devices=(device("d0", 99),))).refusals


def test_only_what_nothing_serves_leaves_for_a_model_that_is_bound() -> None:
    models = {"b": Model("b", 40, 0, served=False), "c": Model("c", 20, 0)}
    view = snapshot([device("d0", 100)], [waiter(1)], [resting("b"), resting("c")], None, **models)
    decision = early(replace(view, models={**view.models, "a": Model("a", 80, 0)}))
    assert loads(decision) == [("a", "d0")]
    assert [v.version for v in decision.loads[0].victims] == ["b"]
    assert early(replace(view, models={**view.models, "a": Model("a", 81, 0)})).refusals


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 4)), min_size=1, max_size=60),
    st.lists(st.integers(50, 160), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.integers(0, 90), st.integers(0, 30), st.integers(1, 3), st.booleans()), min_size=5, max_size=5
    ),
    st.integers(1, 2),
)
def test_by_early_binding_everybody_is_served_where_the_model_is_or_refused_where_it_fits_nowhere(
    requests: list[tuple[float, int]],
    capacities: list[int],
    shapes: list[tuple[int, int, int, bool]],
    parallel: int,
) -> None:
    models: dict[str, Model] = {}
    instances: dict[str, str] = {}
    for number, (size, working, count, pinned) in enumerate(shapes):
        version = str(number)
        models[version] = Model(version, size, working, pinned=pinned)
        instances |= {f"i{number}.{k}": version for k in range(count)}
    devices = {f"d{i}": c for i, c in enumerate(capacities)}
    node = Node(devices, models, instances, Settings(loads_per_device=parallel, binding=Binding.EARLY))
    tickets = [node.arrive(when, str(version)) for when, version in sorted(requests)]
    node.run(1000.0)
    assert sorted([*node.granted, *node.refused]) == sorted(tickets), "everybody ends once"
    assert len(node.residents) == len(node.bound), "one copy of each, and it stays"
