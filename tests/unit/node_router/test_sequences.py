"""Sequences: started, one request after the other, ended, forgotten, lost."""

from __future__ import annotations

import asyncio

import pytest

from rouse_common.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, ResourceExhausted
from rouse_contracts import functions, node
from rouse_node_router import sequences as module
from rouse_node_router.sequences import Sequences
from rouse_testkit.clock import ManualClock


def request(name: str = "s", *, start: bool = False, end: bool = False, tenant: str = "") -> node.InferRequest:
    options = functions.RequestOptions(sequence=functions.Sequence(id=name, start=start, end=end))
    return node.InferRequest(function="f", version_id="v", tenant=tenant, options=options)


async def test_a_sequence_has_to_be_started_and_is_over_when_it_says_so(manual_clock: ManualClock) -> None:
    known = Sequences(60, manual_clock)
    with pytest.raises(InvalidArgument, match="'s' of function 'f' was not started here") as refused:
        known.of(request())
    assert refused.value.reason == "SEQUENCE_NOT_STARTED"
    first = known.of(request(start=True))
    first.instance_id = "i"
    known.ended(request(start=True), first)
    assert known.of(request()) is first
    with pytest.raises(InvalidArgument):
        known.of(request(tenant="somebody else"))
    known.ended(request(end=True), first)
    assert len(known) == 0


async def test_one_whose_first_request_came_to_nothing_has_not_started(manual_clock: ManualClock) -> None:
    known = Sequences(60, manual_clock)
    known.ended(request(start=True), known.of(request(start=True)))
    with pytest.raises(InvalidArgument):
        known.of(request())


async def test_a_lost_one_says_so_until_it_is_started_again(manual_clock: ManualClock) -> None:
    known = Sequences(60, manual_clock)
    first = known.of(request(start=True))
    first.instance_id, first.lost = "i", True
    for _ in range(2):
        with pytest.raises(FailedPrecondition, match="start the sequence again") as lost:
            known.of(request())
        assert lost.value.reason == "SEQUENCE_LOST"
    assert known.of(request(start=True)) is not first


async def test_idle_ones_are_forgotten_and_their_number_is_bounded(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SEQUENCES", 2)
    known = Sequences(60, manual_clock)
    known.of(request("a", start=True))
    manual_clock.advance(40)
    busy = known.of(request("b", start=True))
    with pytest.raises(ResourceExhausted) as refused:
        known.of(request("c", start=True))
    assert refused.value.reason == "TOO_MANY_SEQUENCES"
    assert refused.value.retry_after_s
    async with busy.turn(request("b"), 10):
        manual_clock.advance(100)
        known.forget_idle()
        assert len(known) == 1
    manual_clock.advance(100)
    known.forget_idle()
    assert len(known) == 0


async def test_requests_of_one_go_in_the_order_of_their_arrival(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Sequences(60, manual_clock)
    sequence = known.of(request(start=True))
    order: list[int] = []
    go = asyncio.Event()

    async def take(number: int) -> None:
        async with sequence.turn(request(), 10):
            await go.wait()
            order.append(number)

    tasks = [asyncio.create_task(take(number)) for number in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(DeadlineExceeded, match="not executed"):
        async with sequence.turn(request(), 0.01):
            order.append(-1)
    monkeypatch.setattr(module, "MAX_WAITING", 4)
    with pytest.raises(ResourceExhausted, match="wait already"):
        async with sequence.turn(request(), 10):
            order.append(-1)
    go.set()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3]
