"""The routing table: indexed, replaced by higher generations, watched."""

from __future__ import annotations

import asyncio

import pytest

from rouse_common.errors import InvalidArgument, NotFound, Unavailable
from rouse_contracts import functions, node
from rouse_contracts.cluster import RoutingTable
from rouse_gateway.state import Routes, Table, index, state_name
from rouse_policy.routing import Candidate


def table() -> RoutingTable:
    made = RoutingTable(generation=3)
    versions = [
        functions.FunctionVersion(
            version_id=f"v{n}", version=n, weights_bytes=10 * n, spec=functions.FunctionSpec(name="f")
        )
        for n in (0, 1, 2)
    ]
    versions[2].spec.queue_capacity = 9
    route = made.functions.add(name="f", state="FUNCTION_STATE_READY", versions=versions, active_version_id="v2")
    for version_id, node_id in (("v2", "b"), ("v2", "b"), ("v2", "a"), ("v2", "unknown"), ("v0", "a")):
        route.instances.add(version_id=version_id, node_id=node_id)
    a = made.nodes.add(node_id="a", link_address="host:1", queued_requests=4)
    a.residency.add(version_id="v2", node_id="a", state="DEVICE", device="gpu0")
    a.residency.add(version_id="v2", node_id="a", state="HOST")
    made.nodes.add(node_id="b", link_address="host:2")
    return made


def test_a_version_knows_the_nodes_that_serve_it() -> None:
    found = index(table())
    active = found.version("f", "")
    assert (active.number, active.active) == ("2", True)
    head = node.InferRequest.FromString(active.head)
    assert (head.function, head.version_id, head.queue_capacity) == (active.function, active.version_id, 9)
    assert active.candidates == (Candidate("a", "DEVICE", 4), Candidate("b", "", 0))
    assert found.version("f", "2") is active
    older = found.version("f", "0")
    assert not older.active
    assert older.candidates == (Candidate("a", "DEVICE", 4),), "without weights there is nothing to swap"
    assert node.InferRequest.FromString(older.head).queue_capacity == 256
    assert found.version("f", "1").candidates == ()
    assert found.addresses == {"a": "host:1", "b": "host:2"}
    assert found.instances == {"a": 2, "b": 2, "unknown": 1}


def test_nodes_with_tapes_are_known_beside_those_with_an_instance() -> None:
    made = table()
    for row in made.nodes[0].residency:
        row.tapes = 3
    made.nodes[0].residency.add(version_id="v1", node_id="a", state="HOST", tapes=1)
    made.nodes.add(node_id="c").residency.add(version_id="v1", node_id="c", state="HOST", tapes=1)
    found = index(made)
    assert found.version("f", "2").tape_nodes == (Candidate("a", "DEVICE", 4),)
    # A node whose link is not known cannot be called.
    assert found.version("f", "1").tape_nodes == (Candidate("a", "HOST", 4),)
    assert found.version("f", "1").candidates == found.version("f", "0").tape_nodes == ()


def test_unknown_functions_and_versions_are_refused_in_the_protocol_s_words() -> None:
    found = index(table())
    with pytest.raises(NotFound) as caught:
        found.version("g", "")
    assert caught.value.message == "Request for unknown model: 'g' is not found"
    with pytest.raises(NotFound) as caught:
        found.version("f", "7")
    assert caught.value.reason == "VERSION_NOT_FOUND"
    assert "0, 1, 2" in caught.value.message
    for bad in ("x", "-1", "1.0", "²"):
        with pytest.raises(InvalidArgument):
            found.version("f", bad)


def test_only_newer_tables_are_taken_unless_the_past_was_lost() -> None:
    routes = Routes()
    with pytest.raises(Unavailable):
        routes.loaded_table()
    assert routes.apply(Table(generation=5))
    assert not routes.apply(Table(generation=4))
    assert routes.table.generation == 5
    newer = Table(generation=5, addresses={"a": "x"})
    assert routes.apply(newer)
    assert routes.loaded_table() is newer
    assert routes.apply(Table(generation=1), restored=True)
    assert routes.table.generation == 1


async def test_a_replacement_wakes_all_who_wait_and_nothing_else_does() -> None:
    routes = Routes()
    waiting = [asyncio.ensure_future(routes.change(30)) for _ in range(3)]
    await asyncio.sleep(0)
    routes.apply(Table(generation=2))
    await asyncio.gather(*waiting)
    waiter = asyncio.ensure_future(routes.change(30))
    await asyncio.sleep(0)
    assert not routes.apply(Table(generation=1))
    await asyncio.sleep(0)
    assert not waiter.done()
    waiter.cancel()
    await routes.change(0.001)


def test_states_have_short_names() -> None:
    assert state_name(functions.FUNCTION_STATE_WAKING) == "WAKING"
