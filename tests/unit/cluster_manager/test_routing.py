"""The routing table: what must never be in it, and what must always be."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from rouse_cluster_manager.routing import ROUTED_VERSIONS, VersionCache, build
from rouse_cluster_manager.state import at
from rouse_contracts import cluster, functions
from rouse_store.models import ENDED_STATES, LIVE_STATES, Artefact, Function, Instance, Node, Placement, Version

NOW = at(1_800_000_000)
ARTEFACT = Artefact(
    digest="a" * 64, format="PYTHON", artefact_bytes=1, weights_bytes=1, architecture="", signature={},
    deleting=False, created_at=NOW,
)  # fmt: skip


def make_function(name: str, state: str, versions: int) -> Function:
    function = Function(
        function_id=name, name=name, state=state, active_version=versions, traffic={}, created_at=NOW, since=NOW,
        versions=[],
    )  # fmt: skip
    for number in range(1, versions + 1):
        function.versions.append(
            Version(
                version_id=f"{name}.{number}", function_id=name, version=number, artefact_digest=ARTEFACT.digest,
                artefact=ARTEFACT, spec={"name": name}, created_at=NOW,
            )
        )  # fmt: skip
    return function


def make_node(node_id: str, state: str) -> Node:
    return Node(
        node_id=node_id, incarnation="1", router_address=f"{node_id}:1", link_address=f"{node_id}:2", device_address="",
        coordinator_address="", state=state, registered_at=NOW, last_heartbeat=NOW, since=NOW, devices=[],
    )  # fmt: skip


def make_instance(number: int, version: Version, node_id: str, state: str) -> Instance:
    return Instance(
        instance_id=f"i{number}", version_id=version.version_id, node_id=node_id, node_incarnation="1", state=state,
        reason=f"reason {number}", created_at=NOW + timedelta(seconds=number), since=NOW, ready_at=None,
    )  # fmt: skip


@st.composite
def meshes(draw: st.DrawFn) -> tuple[list[Function], list[Instance], list[Node], list[Placement], dict]:
    functions_ = [
        make_function(f"f{i}", draw(st.sampled_from(["ACTIVE", "DELETING"])), draw(st.integers(1, 20)))
        for i in range(draw(st.integers(0, 3)))
    ]
    nodes = [make_node(f"n{i}", draw(st.sampled_from(["READY", "LOST"]))) for i in range(draw(st.integers(1, 3)))]
    versions = [version for function in functions_ for version in function.versions]
    some_version = st.sampled_from(versions) if versions else st.nothing()
    some_node = st.sampled_from(nodes)
    instances = [
        make_instance(i, draw(some_version), draw(some_node).node_id, draw(st.sampled_from(LIVE_STATES + ENDED_STATES)))
        for i in range(draw(st.integers(0, 8)) if versions else 0)
    ]
    placements = [
        Placement(
            node_id=draw(some_node).node_id, version_id=draw(some_version).version_id, device="", state="HOST",
            size_bytes=1, reason="", swap_in_count=0, since=NOW,
        )
        for _ in range(draw(st.integers(0, 4)) if versions else 0)
    ]  # fmt: skip
    reports = {
        node.node_id: cluster.NodeReport(
            queued_requests=draw(st.integers(0, 9)),
            residency=[
                functions.Residency(version_id=draw(st.sampled_from(["gone", "f0.1"])), state=state)
                for state in draw(st.lists(st.sampled_from(["ABSENT", "HOST", "DEVICE"]), max_size=2))
            ],
        )
        for node in nodes
        if draw(st.booleans())
    }
    return functions_, instances, nodes, placements, reports


@settings(max_examples=200)
@given(meshes())
def test_the_table_names_what_can_serve_and_nothing_else(mesh) -> None:
    found, instances, nodes, placements, reports = mesh
    table = build(found, instances, nodes, placements, reports, VersionCache())
    active = {function.name: function for function in found if function.state == "ACTIVE"}
    ready_nodes = {node.node_id for node in nodes if node.state == "READY"}
    assert [route.name for route in table.functions] == list(active)
    assert [node.node_id for node in table.nodes] == sorted(ready_nodes)
    by_id = {instance.instance_id: instance for instance in instances}
    for route in table.functions:
        function = active[route.name]
        own = {version.version_id for version in function.versions}
        named = {entry.instance_id for entry in route.instances}
        assert len(named) == len(route.instances)
        assert named == {
            i.instance_id for i in instances if i.version_id in own and i.state == "READY" and i.node_id in ready_nodes
        }
        shown = [version.version_id for version in route.versions]
        assert len(set(shown)) == len(shown)
        assert shown[-1] == route.active_version_id == function.active.version_id
        assert {by_id[i].version_id for i in named} <= set(shown) <= own
        assert len(shown) <= ROUTED_VERSIONS + len(instances) + 1
        assert route.state != functions.FUNCTION_STATE_DELETING
    routed = {version.version_id for route in table.functions for version in route.versions}
    for node in table.nodes:
        assert all(entry.version_id in routed and entry.state != "ABSENT" for entry in node.residency)
        if node.node_id in reports:
            assert node.queued_requests == reports[node.node_id].queued_requests


def test_versions_carry_their_whole_spec() -> None:
    function = make_function("f", "ACTIVE", 2)
    function.versions[1].spec = {"name": "f", "handler": "m:C", "queue_capacity": 7, "of_the_future": 1}
    (route,) = build([function], [], [], [], {}, VersionCache()).functions
    assert [version.version for version in route.versions] == [1, 2]
    active = route.versions[-1]
    assert (active.spec.handler, active.spec.queue_capacity) == ("m:C", 7)
    assert active.format == functions.ARTEFACT_FORMAT_PYTHON


def test_versions_with_traffic_are_always_in_the_table_and_say_how_they_stand() -> None:
    function = make_function("f", "ACTIVE", ROUTED_VERSIONS + 5)
    function.active_version, function.traffic = 2, {"1": 40, "2": 60}
    failed = make_instance(1, function.versions[0], "n", "FAILED")
    (route,) = build([function], [failed], [make_node("n", "READY")], [], {}, VersionCache()).functions
    shown = [version.version for version in route.versions]
    assert {1, 2} <= set(shown)
    assert shown[-1] == 2
    assert [(share.version, share.percent) for share in route.traffic] == [(1, 40), (2, 60)]
    assert route.state == functions.FUNCTION_STATE_SLEEPING, "that of the active version"
    assert [(entry.version_id, entry.state, entry.reason) for entry in route.version_states] == [
        ("f.1", functions.FUNCTION_STATE_FAILED, "reason 1")
    ]


def test_residency_comes_from_the_report_or_else_from_what_was_written() -> None:
    function, node = make_function("f", "ACTIVE", 1), make_node("n", "READY")
    written = Placement(
        node_id="n", version_id="f.1", device="", state="DISK", size_bytes=1, reason="", swap_in_count=0, since=NOW
    )
    (route,) = build([function], [], [node], [written], {}, VersionCache()).nodes
    assert [entry.state for entry in route.residency] == ["DISK"]
    said = cluster.NodeReport(residency=[functions.Residency(version_id="f.1", state="DEVICE", device="gpu0")])
    (route,) = build([function], [], [node], [written], {"n": said}, VersionCache()).nodes
    assert [(entry.state, entry.device) for entry in route.residency] == [("DEVICE", "gpu0")]
