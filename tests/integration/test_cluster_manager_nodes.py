"""Nodes come, fall silent, start anew and come back, and their instances with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rouse_common.errors import InvalidArgument, NotFound, Unavailable
from rouse_contracts import cluster, functions
from rouse_testkit.control_plane import MIB, ControlPlane, NodeServices, control_plane

LOST, FAILED, ENDED = cluster.INSTANCE_STATE_LOST, cluster.INSTANCE_STATE_FAILED, cluster.INSTANCE_STATE_ENDED


@pytest.fixture
def no_nats() -> str:
    """NATS is not needed to serve."""
    return "nats://127.0.0.1:9"


@pytest.fixture
async def plane(postgres_url: str, no_nats: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(postgres_url, no_nats, heartbeat_ms=100, node_lost_ms=1500) as plane:
        yield plane


@pytest.fixture
async def patient(postgres_url: str, no_nats: str) -> AsyncIterator[ControlPlane]:
    """One that loses no node by itself while a test takes its time."""
    async with control_plane(postgres_url, no_nats, node_lost_ms=60_000) as plane:
        yield plane


async def registered(plane: ControlPlane, node_id: str = "n0") -> NodeServices:
    node = await plane.node(node_id)
    await plane.register(node)
    await plane.beat(node)
    return node


async def test_a_node_shows_with_its_devices_and_its_last_report(patient: ControlPlane) -> None:
    node = await registered(patient)
    node.report.queued_requests = 3
    await patient.beat(node)
    shown = (await patient.nodes())["n0"]
    assert list(shown.devices) == node.devices
    assert shown.state == cluster.NODE_STATE_READY
    assert shown.report.queued_requests == 3
    assert shown.incarnation == node.incarnation
    node.devices.append(cluster.DeviceInfo(name="gpu1", kind="host", capacity_bytes=5 * MIB))
    await patient.register(node)
    assert list((await patient.nodes())["n0"].devices) == node.devices


async def test_a_silent_node_is_lost_with_its_instances_and_told_to_stop_them_when_it_is_back(
    plane: ControlPlane,
) -> None:
    node = await registered(plane)
    version = await plane.deploy("f")
    instance = await plane.run_instance(version, node)
    await plane.becomes(plane.nodes, lambda nodes: nodes["n0"].state == cluster.NODE_STATE_LOST)
    found = (await plane.instances(ended=True))[instance.instance_id]
    assert found.state == LOST
    assert "heartbeat" in found.reason
    table = await plane.table()
    assert not table.nodes
    assert not table.functions[0].instances
    with pytest.raises(Unavailable) as caught:
        await plane.place(version)
    assert caught.value.reason == "NO_NODE"
    assert await plane.beat(node) == [instance.instance_id]
    assert (await plane.nodes())["n0"].state == cluster.NODE_STATE_READY
    assert [entry.node_id for entry in (await plane.table()).nodes] == ["n0"]
    response = await plane.call("ListEvents", cluster.ListEventsRequest(subject="n0"))
    assert [event.kind for event in response.events] == ["node.returned", "node.lost", "node.registered"]


async def test_a_node_that_sends_heartbeats_is_not_lost(plane: ControlPlane) -> None:
    node, silent = await registered(plane), await registered(plane, "n1")

    async def beats() -> dict[str, cluster.Node]:
        await plane.beat(node)
        return await plane.nodes()

    nodes = await plane.becomes(beats, lambda nodes: nodes[silent.node_id].state == cluster.NODE_STATE_LOST)
    assert nodes["n0"].state == cluster.NODE_STATE_READY


async def test_a_new_incarnation_ends_what_ran_in_the_one_before(patient: ControlPlane) -> None:
    node = await registered(patient)
    version = await patient.deploy("f", scaling=functions.Scaling(max_instances=5))
    before = [await patient.run_instance(version, node), (await patient.place(version)).instance]
    await patient.register(node)
    assert len(await patient.instances()) == 2, "registering again ends nothing"
    node.incarnation, node.held = "n0-2", set()
    await patient.register(node)
    ended = await patient.instances(ended=True)
    assert [ended[instance.instance_id].state for instance in before] == [LOST, LOST]
    after = await patient.run_instance(version, node)
    assert await patient.beat(node) == []
    assert list(await patient.instances()) == [after.instance_id]


async def test_heartbeats_of_who_is_not_registered_are_refused(patient: ControlPlane) -> None:
    node = await patient.node("n0")
    for _ in range(2):
        with pytest.raises(NotFound) as caught:
            await patient.beat(node)
        assert caught.value.reason == "NODE_NOT_REGISTERED"
        await patient.register(node)
        node.incarnation = "another"
    assert list(await patient.nodes()) == ["n0"]


async def test_instances_that_the_control_plane_does_not_know_are_to_be_stopped(patient: ControlPlane) -> None:
    node, other = await registered(patient), await registered(patient, "n1")
    instance = await patient.run_instance(await patient.deploy("f"), node)
    pending = (await patient.place(await patient.deploy("g"))).instance
    node.held |= {"unknown"}
    other.held |= {instance.instance_id}
    assert await patient.beat(node) == ["unknown"]
    assert await patient.beat(other) == [instance.instance_id], "it belongs to n0"
    assert set(await patient.instances()) == {instance.instance_id, pending.instance_id}


async def test_instances_that_a_node_does_not_hold_any_more_are_ended(plane: ControlPlane) -> None:
    node = await registered(plane)
    serving = await plane.run_instance(await plane.deploy("f"), node)
    stopping = await plane.run_instance(await plane.deploy("g"), node)
    pending = (await plane.place(await plane.deploy("h"))).instance
    await plane.report(stopping, "STOPPING")
    node.held.clear()
    await plane.beat(node)
    assert set(await plane.instances()) == {i.instance_id for i in (serving, stopping, pending)}, "once may be chance"

    async def beats() -> dict[str, cluster.Instance]:
        await plane.beat(node)
        return await plane.instances(ended=True)

    found = await plane.becomes(beats, lambda i: i[serving.instance_id].state == FAILED)
    assert found[stopping.instance_id].state == ENDED
    assert found[pending.instance_id].state == cluster.INSTANCE_STATE_PENDING


async def test_an_instance_that_stops_for_too_long_is_told_again(postgres_url: str, no_nats: str) -> None:
    async with control_plane(postgres_url, no_nats, node_lost_ms=60_000, stop_limit_s=0.1) as plane:
        node = await registered(plane)
        instance = await plane.run_instance(await plane.deploy("f"), node)
        assert await plane.beat(node) == []
        await plane.report(instance, "STOPPING")
        await plane.becomes(lambda: plane.beat(node), lambda stop: stop == [instance.instance_id])


async def test_residency_shows_with_the_function_and_in_the_table(patient: ControlPlane) -> None:
    node = await registered(patient)
    version = await patient.deploy("f")
    node.hold(version, "DEVICE", "gpu0")
    await patient.beat(node)
    (entry,) = (await patient.function("f")).residency
    assert (entry.node_id, entry.state, entry.device) == ("n0", "DEVICE", "gpu0")
    (route,) = (await patient.table()).nodes
    assert [(e.version_id, e.device) for e in route.residency] == [(version.version_id, "gpu0")]
    node.report.queued_requests = 5
    node.report.residency[0].state = "ABSENT"
    await patient.beat(node)
    (route,) = (await patient.table()).nodes
    assert (list(route.residency), route.queued_requests) == ([], 5)


async def test_what_the_control_plane_does_not_know_is_dropped_where_it_is(patient: ControlPlane) -> None:
    node = await registered(patient)
    known = await patient.deploy("f")
    node.hold(known, "HOST")
    node.hold(functions.FunctionVersion(version_id="of-long-ago"), "HOST")
    await patient.beat(node)

    async def dropped() -> list[tuple[str, str]]:
        await patient.beat(node)
        return node.dropped

    assert await patient.becomes(dropped, bool) == [("of-long-ago", "")]
    assert [entry.version_id for entry in node.report.residency] == [known.version_id]


async def test_bad_nodes_are_refused(patient: ControlPlane) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await patient.call("RegisterNode", cluster.RegisterNodeRequest(node=cluster.Node(node_id="n0")))
    assert caught.value.reason == "BAD_NODE"
    assert await patient.nodes() == {}


async def test_bad_reports_are_refused(patient: ControlPlane) -> None:
    node = await registered(patient)
    node.report.residency.add(version_id="v", state="SOMEWHERE")
    with pytest.raises(InvalidArgument) as caught:
        await patient.beat(node)
    assert caught.value.reason == "BAD_REPORT"


async def test_nodes_that_stay_away_are_forgotten(postgres_url: str, no_nats: str, monkeypatch) -> None:
    monkeypatch.setattr("rouse_cluster_manager.app.PRUNE_S", 0.1)
    settings = {"heartbeat_ms": 100, "node_lost_ms": 1500, "forget_node_s": 1.0}
    async with control_plane(postgres_url, no_nats, **settings) as plane:
        node = await registered(plane)
        await plane.run_instance(await plane.deploy("f"), node)
        await plane.becomes(plane.nodes, lambda nodes: nodes == {})
        assert await plane.instances(ended=True) == {}
        with pytest.raises(NotFound):
            await plane.beat(node)


async def test_many_nodes_at_once(patient: ControlPlane) -> None:
    nodes = [await patient.node(f"n{i}") for i in range(10)]
    await asyncio.gather(*(patient.register(node) for node in nodes))
    version = await patient.deploy("f", scaling=functions.Scaling(max_instances=10))
    for node in nodes:
        node.hold(version, "HOST")
    for _ in range(3):
        await asyncio.gather(*(patient.beat(node) for node in nodes))
    placed = await asyncio.gather(*(patient.place(version) for _ in range(10)))
    assert {p.instance.node_id for p in placed} == {node.node_id for node in nodes}, "one for each device"
