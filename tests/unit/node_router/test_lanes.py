"""What waits for a version: the order in which it would go is the order in which it goes."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rouse_contracts import node
from rouse_node_router.lanes import Lanes
from rouse_node_router.tickets import Ticket
from rouse_node_router.versions import VersionQueue

REQUESTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 9), st.integers(1, 4)), max_size=30
)


def tickets(requests: list[tuple[str, int, int, int]]) -> list[Ticket]:
    loop, made = asyncio.new_event_loop(), []
    queue = VersionQueue("f", "v", 0.0)
    for number, (tenant, weight, level, rows) in enumerate(requests):
        request = node.InferRequest(tenant=tenant, tenant_weight=weight)
        ticket = Ticket(queue, request, b"", float(number), 1e9, loop.create_future())
        ticket.level, ticket.rows, ticket.batchable = level, rows, rows > 1
        made.append(ticket)
    loop.close()
    return made


@given(REQUESTS)
def test_what_is_foretold_is_what_happens(requests: list[tuple[str, int, int, int]]) -> None:
    lanes = Lanes()
    for ticket in tickets(requests):
        lanes.add(ticket)
    foretold, served = list(lanes), []
    assert len(lanes) == len(requests) == len(foretold)
    while len(lanes):
        ticket = next(iter(lanes))
        lanes.charge(ticket)
        lanes.remove(ticket)
        served.append(ticket)
    assert served == foretold
    for tenant in "abc":
        own = [(ticket.level, ticket.arrived) for ticket in served if ticket.tenant == tenant]
        assert own == sorted(own)


@given(REQUESTS, st.data())
def test_counts_are_right_whoever_goes(requests: list[tuple[str, int, int, int]], data: st.DataObject) -> None:
    lanes, here = Lanes(), tickets(requests)
    for ticket in here:
        lanes.add(ticket)
    while here:
        gone = here.pop(data.draw(st.integers(0, len(here) - 1)))
        lanes.remove(gone)
        lanes.remove(gone)
        held = {tenant: holding.waiting for tenant, holding in lanes.holdings().items()}
        assert held == Counter(ticket.tenant for ticket in here)
        alone = sum(not ticket.batchable for ticket in here)
        rows = sum(ticket.rows for ticket in here if ticket.batchable)
        assert lanes.groups(4) == alone + -(-rows // 4)
        assert lanes.full_groups(4) == alone + rows // 4


def test_the_last_one_is_the_newest_of_the_lowest_priority() -> None:
    urgent, older, newer = tickets([("a", 1, 1, 1), ("a", 1, 9, 1), ("a", 1, 9, 1)])
    lanes = Lanes()
    for ticket in (older, newer, urgent):
        lanes.add(ticket)
    assert lanes.last("a") is newer
