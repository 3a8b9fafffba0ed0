"""Which nodes get a function's weights before they are needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rouse_policy.golden import line, replay
from rouse_policy.spreading import Decision, Demand, Node, Settings, Snapshot, State, decide

SETTINGS = Settings(half_life_s=100.0, share=0.5, room=0.5)
NODES = (Node("a", 2, 100), Node("b", 2, 100), Node("c", 2, 300))


def demand(rate: float | None, *holding: str, size: int = 40, serving: tuple[str, ...] = ("a",)) -> Demand:
    """Of a function of which a device serves ten requests a second."""
    return Demand("f-v1", "f", size, rate, 10.0, serving, holding)


def decided(state: State, now: float, *demands: Demand, nodes: tuple[Node, ...] = NODES) -> tuple[Decision, State]:
    return decide(Snapshot(nodes, demands), state, SETTINGS, now)


def where(decision: Decision) -> list[str]:
    return [copy.node_id for copy in decision.copies]


def test_what_its_nodes_can_serve_stays_where_it_is() -> None:
    # One device of node a's two may be its own.
    assert where(decided(State(), 0.0, demand(10.0))[0]) == []
    assert where(decided(State(), 0.0, demand(None))[0]) == []


def test_demand_past_that_brings_it_to_the_node_with_most_room() -> None:
    decision, _ = decided(State(), 0.0, demand(11.0))
    assert where(decision) == ["c"]
    assert decision.copies[0].reason == (
        "function f kept 1.1 devices busy at its peak, the nodes with its weights give it 1; "
        "c has 260 B of host memory left beside them"
    )
    assert where(decided(State(), 0.0, demand(21.0))[0]) == ["c", "b"]


def test_who_holds_it_already_comes_first_and_needs_no_room() -> None:
    assert where(decided(State(), 0.0, demand(11.0, "b", size=90))[0]) == ["b"]


def test_a_peak_is_remembered_and_fades() -> None:
    decision, state = decided(State(), 0.0, demand(20.0))
    assert where(decision) == ["c"]
    decision, state = decided(state, 90.0, demand(0.0))
    assert where(decision) == ["c"]
    decision, state = decided(state, 110.0, demand(None))
    assert where(decision) == []
    _, state = decided(state, 2000.0, demand(0.0))
    assert state == State()


def test_room_is_shared_and_what_does_not_fit_goes_nowhere() -> None:
    first, second = demand(30.0), Demand("g-v1", "g", 120, 15.0, 10.0, ("a",))
    decision, _ = decided(State(), 0.0, second, first)
    # f takes 40 of c's 300 and of b's 100 bytes first; half of what is left at c still holds g.
    assert [(c.version_id, c.node_id) for c in decision.copies] == [("f-v1", "c"), ("f-v1", "b"), ("g-v1", "c")]
    assert where(decided(State(), 0.0, demand(30.0, size=200))[0]) == []


def test_what_nothing_serves_or_has_no_weights_is_left_alone() -> None:
    assert where(decided(State(), 0.0, demand(99.0, serving=()))[0]) == []
    assert where(decided(State(), 0.0, demand(99.0, size=0))[0]) == []


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 1000)), min_size=1, max_size=5),
    st.lists(st.tuples(st.floats(0, 1e4), st.integers(1, 500), st.integers(0, 4)), max_size=5),
)
def test_copies_fit_are_no_one_s_twice_and_more_demand_takes_no_fewer(
    rows: list[tuple[int, int]], wants: list[tuple[float, int, int]]
) -> None:
    nodes = tuple(Node(f"n{i}", devices, free) for i, (devices, free) in enumerate(rows))
    demands = tuple(
        Demand(f"v{i}", f"f{i}", size, rate, 10.0, (nodes[at % len(nodes)].node_id,))
        for i, (rate, size, at) in enumerate(wants)
    )
    decision, state = decide(Snapshot(nodes, demands), State(), SETTINGS, 0.0)
    pairs = [(c.version_id, c.node_id) for c in decision.copies]
    assert len(set(pairs)) == len(pairs)
    sizes = {d.version_id: d.size_bytes for d in demands}
    for node in nodes:
        assert sum(sizes[v] for v, n in pairs if n == node.node_id) <= node.free_bytes
    assert not any(n in d.serving for d in demands for v, n in pairs if v == d.version_id)
    if len(demands) == 1:
        (one,) = demands
        more = Demand(one.version_id, one.function, one.size_bytes, 2 * (one.rate or 0.0), 10.0, one.serving)
        assert len(decide(Snapshot(nodes, (more,)), State(), SETTINGS, 0.0)[0].copies) >= len(pairs)
    snapshot = Snapshot(nodes, demands)
    assert replay(line("spreading", snapshot, State(), SETTINGS, 0.0, decision)).same
    assert set(state.peaks) <= set(sizes)
