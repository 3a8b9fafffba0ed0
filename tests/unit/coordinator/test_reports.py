from __future__ import annotations

import asyncio

from rouse_common.errors import NotFound, Unavailable
from rouse_contracts.cluster import InstanceState, ReportInstanceRequest
from rouse_coordinator import reports as module
from rouse_coordinator.reports import Reports

STATES = [
    InstanceState.INSTANCE_STATE_STARTING,
    InstanceState.INSTANCE_STATE_READY,
    InstanceState.INSTANCE_STATE_STOPPING,
    InstanceState.INSTANCE_STATE_ENDED,
]


def report(instance_id: str, state: InstanceState) -> ReportInstanceRequest:
    return ReportInstanceRequest(instance_id=instance_id, state=state)


async def test_reports_arrive_in_order_through_failures(monkeypatch) -> None:
    monkeypatch.setattr(module, "FIRST_DELAY_S", 0.001)
    delivered: list[tuple[str, int]] = []
    failures = 5

    async def send(request: ReportInstanceRequest) -> None:
        nonlocal failures
        if request.instance_id == "a" and failures:
            failures -= 1
            raise Unavailable("UNAVAILABLE", "away")
        delivered.append((request.instance_id, request.state))

    async with asyncio.TaskGroup() as group:
        reports = Reports(send, group)
        for state in STATES:
            reports.add(report("a", state))
            reports.add(report("b", state))
        assert reports.undelivered == {"a", "b"}
        assert await reports.delivered(10)
        assert reports.undelivered == frozenset()
    for instance_id in ("a", "b"):
        assert [state for name, state in delivered if name == instance_id] == STATES
    # One instance's trouble does not hold another's reports up.
    assert delivered.index(("b", STATES[-1])) < delivered.index(("a", STATES[0]))


async def test_what_the_control_plane_does_not_know_is_dropped() -> None:
    async def send(request: ReportInstanceRequest) -> None:
        raise NotFound("INSTANCE_NOT_FOUND", "unknown")

    async with asyncio.TaskGroup() as group:
        reports = Reports(send, group)
        reports.add(report("a", STATES[0]))
        assert await reports.delivered(10)


async def test_waiting_for_delivery_is_bounded() -> None:
    answer = asyncio.Event()

    async def send(request: ReportInstanceRequest) -> None:
        await answer.wait()

    async with asyncio.TaskGroup() as group:
        reports = Reports(send, group)
        assert await reports.delivered(0.01)
        reports.add(report("a", STATES[0]))
        assert not await reports.delivered(0.01)
        answer.set()
        assert await reports.delivered(10)
