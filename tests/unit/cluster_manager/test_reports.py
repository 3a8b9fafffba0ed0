"""What nodes say of themselves: bad reports are refused, changes that matter are told from those that do not."""

from __future__ import annotations

from typing import Any

import pytest

from rouse_cluster_manager.reports import check_node, check_report, residency_key, routing_view
from rouse_common.errors import InvalidArgument
from rouse_contracts import cluster, functions
from rouse_contracts.tapes import counts


def node(**fields: Any) -> cluster.Node:
    addresses = {f"{what}_address": what for what in ("router", "link", "device", "coordinator")}
    whole: dict[str, Any] = {"node_id": "n", "incarnation": "1"}
    return cluster.Node(**(whole | addresses | fields))


def gpu(name: str = "a", kind: str = "host", capacity_bytes: int = 1) -> cluster.DeviceInfo:
    return cluster.DeviceInfo(name=name, kind=kind, capacity_bytes=capacity_bytes)


BAD_NODES = {
    "nothing": cluster.Node(),
    "no coordinator": node(coordinator_address=""),
    "NUL in the id": node(node_id="n\x00"),
    "long id": node(node_id="n" * 129),
    "unknown kind": node(devices=[gpu(kind="tpu")]),
    "one name twice": node(devices=[gpu(), gpu()]),
    "no name": node(devices=[gpu(name="")]),
    "no capacity": node(devices=[gpu(capacity_bytes=0)]),
    "capacity beyond 63 bits": node(devices=[gpu(capacity_bytes=2**63)]),
    "too many devices": node(devices=[gpu(name=str(i)) for i in range(65)]),
}


@pytest.mark.parametrize("what", BAD_NODES)
def test_bad_nodes(what: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_node(BAD_NODES[what])
    assert caught.value.reason == "BAD_NODE"


def test_good_nodes() -> None:
    check_node(node())
    check_node(node(devices=[gpu(name=f"gpu{i}") for i in range(64)]))


@pytest.mark.parametrize(
    "request_",
    [
        cluster.HeartbeatRequest(node_id="n\x00"),
        cluster.HeartbeatRequest(instance_ids=["x" * 129]),
        cluster.HeartbeatRequest(instance_ids=["x"] * 10_001),
        cluster.HeartbeatRequest(report=cluster.NodeReport(residency=[functions.Residency(state="NOWHERE")])),
        cluster.HeartbeatRequest(
            report=cluster.NodeReport(residency=[functions.Residency(version_id="\x00", state="HOST")])
        ),
    ],
)
def test_bad_reports(request_: cluster.HeartbeatRequest) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_report(request_)
    assert caught.value.reason == "BAD_REPORT"


def report(*states: str, **fields: Any) -> cluster.NodeReport:
    residency = [
        functions.Residency(version_id=f"v{i}", state=state, swap_in_count=i) for i, state in enumerate(states)
    ]
    return cluster.NodeReport(residency=residency, **fields)


def test_executing_is_no_change_of_residency_but_moving_is() -> None:
    assert residency_key(report("DEVICE", "ABSENT")) == residency_key(report("EXECUTING"))
    assert residency_key(report("DEVICE")) != residency_key(report("HOST"))
    assert residency_key(report()) != residency_key(report("DISK"))


def test_what_was_measured_is_written_when_something_follows_from_it() -> None:
    def weighed(**fields: Any) -> cluster.NodeReport:
        return cluster.NodeReport(residency=[functions.Residency(version_id="v", state="DEVICE", device="d", **fields)])

    light = weighed(heaviness="d: light: 1.50")
    assert residency_key(light) != residency_key(weighed())
    assert residency_key(light) == residency_key(weighed(heaviness="d: light: 1.51"))
    assert residency_key(light) != residency_key(weighed(heaviness="d: heavy: 2.00", heavy=True))
    assert residency_key(weighed(measured_working_bytes=5000)) != residency_key(weighed())


def test_a_new_reason_is_written_of_what_is_on_no_device() -> None:
    def because(reason: str, device: str = "") -> cluster.NodeReport:
        row = functions.Residency(version_id="v", state="DEVICE" if device else "HOST", device=device, reason=reason)
        return cluster.NodeReport(residency=[row])

    assert residency_key(because("staged")) != residency_key(because("bound to no device"))
    assert residency_key(because("request 1", "d")) == residency_key(because("request 2", "d"))


def test_routing_looks_at_queues_too() -> None:
    assert routing_view(report("HOST", executing_requests=3)) == routing_view(report("HOST"))
    assert routing_view(report("HOST", queued_requests=3)) != routing_view(report("HOST"))


def test_routing_looks_at_whether_there_are_tapes_and_not_at_how_many() -> None:
    one, many = report("HOST"), report("HOST")
    one.residency[0].tapes, many.residency[0].tapes = 1, 4
    assert routing_view(one) == routing_view(many) != routing_view(report("HOST"))


def test_of_each_version_the_most_tapes_of_a_node_count() -> None:
    one, other = report("HOST", "DEVICE"), report("HOST", "ABSENT", "DISK")
    one.residency[0].tapes, other.residency[0].tapes, other.residency[1].tapes = 2, 3, 7
    assert counts([one, other]) == {"v0": 3}
