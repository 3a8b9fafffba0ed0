"""Placement: never where it cannot run, near the weights where possible, the same however nodes are listed."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rouse_policy.placement import (
    Decision,
    DeviceView,
    NodeView,
    Refusal,
    Settings,
    Snapshot,
    State,
    Tier,
    Weights,
    decide,
    misfit,
    pin_misfit,
)

MIB = 1 << 20


def place(snapshot: Snapshot) -> Decision:
    decision, _ = decide(snapshot, State(), Settings(), now=0.0)
    return decision


@st.composite
def device(draw: st.DrawFn, name: str) -> DeviceView:
    capacity = draw(st.integers(1, 100)) * MIB
    return DeviceView(name, capacity, draw(st.integers(0, capacity)))


@st.composite
def node(draw: st.DrawFn, node_id: str) -> NodeView:
    host = draw(st.integers(0, 200)) * MIB
    return NodeView(
        node_id,
        ready=draw(st.booleans()),
        devices=tuple(draw(device(f"gpu{i}")) for i in range(draw(st.integers(0, 3)))),
        tier=draw(st.sampled_from(Tier)),
        host_capacity_bytes=host,
        host_free_bytes=draw(st.integers(0, host)),
        load=draw(st.integers(0, 20)),
        instances=draw(st.integers(0, 5)),
        same_version=draw(st.integers(0, 3)),
        failed_starts=draw(st.integers(0, 2)),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes = tuple(draw(node(f"n{i}")) for i in range(draw(st.integers(0, 4))))
    weights = draw(st.sampled_from([0, 1])) * draw(st.integers(1, 120)) * MIB
    return Snapshot("f", weights, draw(st.integers(0, 50)) * MIB, nodes)


def could_run(snapshot: Snapshot, node: NodeView) -> bool:
    if snapshot.weights_bytes == 0:
        return True
    need = snapshot.weights_bytes + snapshot.working_memory_bytes
    host = node.host_capacity_bytes == 0 or snapshot.weights_bytes <= node.host_capacity_bytes
    return host and any(d.capacity_bytes >= need for d in node.devices)


@given(snapshots())
def test_a_node_is_chosen_exactly_if_a_ready_one_could_run_it(snapshot: Snapshot) -> None:
    decision = place(snapshot)
    able = {n.node_id for n in snapshot.nodes if n.ready and could_run(snapshot, n)}
    assert (decision.node_id in able) if able else decision.node_id is None
    assert (decision.node_id is None) == (decision.refusal is not None)
    assert decision.reason


@given(snapshots())
def test_a_model_is_too_large_only_where_no_registered_node_could_ever_run_it(snapshot: Snapshot) -> None:
    decision = place(snapshot)
    ever = any(could_run(snapshot, n) for n in snapshot.nodes)
    assert (decision.refusal is Refusal.MODEL_TOO_LARGE) == (bool(snapshot.nodes) and not ever)
    assert (misfit(snapshot.weights_bytes, snapshot.working_memory_bytes, snapshot.nodes) is None) == ever


@given(snapshots(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(snapshot: Snapshot, random) -> None:
    nodes = list(snapshot.nodes)
    random.shuffle(nodes)
    assert place(replace(snapshot, nodes=tuple(nodes))) == place(snapshot)


@given(snapshots())
def test_bringing_the_weights_nearer_never_loses_a_node_its_choice(snapshot: Snapshot) -> None:
    decision = place(snapshot)
    if decision.node_id is None:
        return
    nearer = tuple(
        replace(n, tier=Tier(min(n.tier + 1, Tier.DEVICE))) if n.node_id == decision.node_id else n
        for n in snapshot.nodes
    )
    assert place(replace(snapshot, nodes=nearer)).node_id == decision.node_id


@given(snapshots())
def test_one_more_waiting_request_elsewhere_never_loses_a_node_its_choice(snapshot: Snapshot) -> None:
    decision = place(snapshot)
    busier = tuple(n if n.node_id == decision.node_id else replace(n, load=n.load + 1) for n in snapshot.nodes)
    assert place(replace(snapshot, nodes=busier)).node_id == decision.node_id


GPU = DeviceView("gpu0", 100 * MIB, 100 * MIB)
PLAIN = NodeView("a", ready=True, devices=(GPU,), host_capacity_bytes=400 * MIB, host_free_bytes=400 * MIB)


def chosen(*nodes: NodeView, weights: int = 10 * MIB) -> str | None:
    return place(Snapshot("f", weights, 0, nodes)).node_id


def test_near_weights_win_over_an_idle_node() -> None:
    b = replace(PLAIN, node_id="b", load=9)
    for tier in (Tier.DISK, Tier.HOST, Tier.DEVICE):
        assert chosen(PLAIN, replace(b, tier=tier)) == "b"
    assert chosen(PLAIN, b) == "a"


def test_a_node_with_as_many_instances_as_devices_is_the_second_choice() -> None:
    crowded = replace(PLAIN, node_id="b", tier=Tier.DEVICE, same_version=1)
    assert chosen(PLAIN, crowded) == "a"
    assert chosen(replace(PLAIN, ready=False), crowded) == "b"


def test_where_a_start_failed_lately_comes_last() -> None:
    assert chosen(replace(PLAIN, failed_starts=1, tier=Tier.DEVICE), replace(PLAIN, node_id="b", load=9)) == "b"


def test_a_full_host_comes_after_one_with_room() -> None:
    full = replace(PLAIN, tier=Tier.DISK, host_free_bytes=MIB)
    assert chosen(full, replace(PLAIN, node_id="b", load=9)) == "b"
    assert chosen(replace(full, tier=Tier.HOST), replace(PLAIN, node_id="b")) == "a"


def test_the_reason_says_the_numbers() -> None:
    decision = place(Snapshot("f", 30 * MIB, 5 * MIB, (replace(PLAIN, load=3, instances=2, tier=Tier.HOST),)))
    for words in ("host memory", "100.0 MiB free", "35.0 MiB", "3 requests", "2 instances"):
        assert words in decision.reason


def test_the_refusal_names_the_largest_device() -> None:
    small = replace(PLAIN, node_id="b", devices=(DeviceView("tiny", MIB, MIB),))
    decision = place(Snapshot("f", 99 * MIB, 2 * MIB, (PLAIN, small)))
    assert decision.refusal is Refusal.MODEL_TOO_LARGE
    for words in ("gpu0 of node a", "100.0 MiB", "101.0 MiB"):
        assert words in decision.reason


def test_the_only_large_node_being_away_is_no_verdict_on_the_model() -> None:
    away = replace(PLAIN, ready=False)
    decision = place(Snapshot("f", 50 * MIB, 0, (away, replace(PLAIN, node_id="b", devices=()))))
    assert decision.refusal is Refusal.NO_NODE
    assert "a" in decision.reason.split(": ")[-1]


def mesh_of(*capacities: int) -> tuple[NodeView, ...]:
    devices = tuple(DeviceView(f"gpu{i}", capacity, capacity) for i, capacity in enumerate(capacities))
    return (
        NodeView("n0", True, devices, Tier.ABSENT, 1000, 1000, load=0, instances=0, same_version=0, failed_starts=0),
    )


def test_pinned_weights_leave_room_for_the_largest_other_function() -> None:
    pin, other = Weights(60, 0, True), Weights(30, 10, False)
    assert pin_misfit([pin, other], mesh_of(100)) is None
    assert "largest other function" in (pin_misfit([pin, Weights(30, 11, False)], mesh_of(100)) or "")
    assert pin_misfit([pin, Weights(90, 0, False)], mesh_of(100, 70)) is None, "each has a device"
    assert "do not fit" in (pin_misfit([pin, pin], mesh_of(100)) or "")
    assert pin_misfit([pin, pin], mesh_of(100, 60)) is None
    assert pin_misfit([other, other], mesh_of(10)) is None, "nothing is pinned"
    assert pin_misfit([pin], ()) is None, "without any device every size can be deployed"


@given(
    st.lists(st.builds(Weights, st.integers(1, 60), st.integers(0, 20), st.booleans()), max_size=6),
    st.lists(st.integers(20, 100), min_size=1, max_size=3),
)
def test_what_is_accepted_can_be_laid_out(versions: list[Weights], capacities: list[int]) -> None:
    if pin_misfit(versions, mesh_of(*capacities)) is not None:
        return
    pinned = [v for v in versions if v.pinned]
    if pinned:
        assert sum(v.weights_bytes for v in pinned) <= sum(capacities)
        assert all(v.needed_bytes <= max(capacities) for v in versions)
