"""The node's queues: every request leaves exactly once, in order, within every limit."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rouse_common.errors import DeadlineExceeded, ResourceExhausted
from rouse_common.statemachine import IllegalTransition
from rouse_node_router import queues as module
from rouse_node_router.queues import Outcome, Phase, Queues, Ticket
from rouse_policy import queueing
from rouse_testkit.clock import ManualClock

LIMITS = queueing.Settings(max_acquiring=3, max_acquiring_per_version=2)

# What happens next: an arrival (version, time to its deadline), time passing, or something to one of the
# requests that are here.
ARRIVE = st.tuples(st.just("arrive"), st.integers(0, 3), st.sampled_from([0.5, 2.0, 60.0]))
PASS = st.tuples(st.just("pass"), st.sampled_from([0.1, 1.0]), st.none())
TOUCH = st.tuples(st.sampled_from(["grant", "again", "finish", "fail", "cancel"]), st.integers(0, 50), st.none())
EVENTS = st.lists(st.one_of(ARRIVE, ARRIVE, PASS, TOUCH, TOUCH), max_size=80)


class World:
    """Plays the part of the requests' tasks."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.queues = Queues(LIMITS, self.clock)
        self.here: list[Ticket] = []
        self.refusals: list[ResourceExhausted] = []
        self.arrived: Counter[str] = Counter()
        self.ended: Counter[tuple[str, Outcome]] = Counter()

    def leave(self, ticket: Ticket, outcome: Outcome) -> None:
        self.queues.leave(ticket, outcome)
        self.here.remove(ticket)
        self.ended[ticket.queue.version_id, outcome] += 1
        with pytest.raises(IllegalTransition):
            self.queues.leave(ticket, outcome)

    def arrive(self, version: int, time_left_s: float) -> None:
        version_id = f"v{version}"
        self.arrived[version_id] += 1
        try:
            self.here.append(self.queues.enter(f"f{version}", version_id, 3, self.clock.monotonic() + time_left_s))
        except ResourceExhausted as error:
            self.refusals.append(error)
            self.ended[version_id, Outcome.REFUSED] += 1

    def touch(self, what: str, which: int) -> None:
        phases = {"grant": Phase.ACQUIRING, "again": Phase.EXECUTING, "finish": Phase.EXECUTING}
        fitting = [ticket for ticket in self.here if ticket.phase is phases.get(what, ticket.phase)]
        if not fitting:
            return
        ticket = fitting[which % len(fitting)]
        if what == "grant":
            self.queues.granted(ticket)
        elif what == "again":
            self.queues.again(ticket)
        elif what == "finish":
            self.leave(ticket, Outcome.COMPLETED)
        elif what == "fail":
            self.leave(ticket, Outcome.FAILED)
        else:
            ticket.turn.cancel()
            self.leave(ticket, Outcome.CANCELLED)

    def expire(self) -> None:
        """A request whose deadline passed in the queue leaves by its own timer, or was told by the queue."""
        for ticket in list(self.here):
            if ticket.phase is Phase.QUEUED and ticket.deadline <= self.clock.monotonic():
                assert not ticket.turn.done() or isinstance(ticket.turn.exception(), DeadlineExceeded)
                self.leave(ticket, Outcome.EXPIRED)

    def check(self) -> None:
        rows = {row.version_id: row for row in self.queues.rows()}
        acquiring = sum(ticket.phase is Phase.ACQUIRING for ticket in self.here)
        assert self.queues.acquiring == acquiring
        assert all(error.reason == "QUEUE_FULL" and error.retry_after_s for error in self.refusals)
        for version_id, row in rows.items():
            here = [ticket for ticket in self.here if ticket.queue.version_id == version_id]
            assert row.executing == sum(ticket.phase is Phase.EXECUTING for ticket in here)
            assert row.queued == len(here) - row.executing
            waiting = [ticket for ticket in here if ticket.phase is Phase.QUEUED]
            acquiring = sum(ticket.phase is Phase.ACQUIRING for ticket in here)
            for ticket in waiting:
                assert not ticket.turn.done()
            # Nobody waits in the queue without a reason.
            if waiting:
                full = self.queues.acquiring >= LIMITS.max_acquiring
                assert full or acquiring >= LIMITS.max_acquiring_per_version
            ended = {outcome: self.ended[version_id, outcome] for outcome in Outcome}
            assert row.ended == ended
            assert self.arrived[version_id] == len(here) + sum(ended.values())


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(EVENTS)
def test_every_request_leaves_exactly_once(events: list[tuple[str, float, float]]) -> None:
    async def play() -> None:
        world = World()
        for what, number, time_left_s in events:
            if what == "arrive":
                world.arrive(int(number), time_left_s)
            elif what == "pass":
                world.clock.advance(number)
            else:
                world.touch(what, int(number))
            world.expire()
            world.check()
        while world.here:
            world.touch("grant", 0)
            world.touch("finish", 0)
            world.expire()
            world.check()
        assert world.queues.acquiring == 0
        world.clock.advance(1000)
        world.queues.forget_idle(999)
        assert world.queues.rows() == []

    asyncio.run(play())


async def test_first_come_first_served_within_a_version(manual_clock: ManualClock) -> None:
    queues = Queues(queueing.Settings(max_acquiring_per_version=1), manual_clock)
    tickets = []
    for number in range(4):
        # Later ones are in more of a hurry, and still wait their turn.
        tickets.append(queues.enter("f", "v", 10, manual_clock.monotonic() + 10 - number))
        manual_clock.advance(0.01)
    for number, ticket in enumerate(tickets):
        assert [other.turn.done() for other in tickets] == [n <= number for n in range(4)]
        queues.granted(ticket)
    for ticket in tickets:
        queues.leave(ticket, Outcome.COMPLETED)


async def test_between_versions_the_earliest_deadline_goes_first(manual_clock: ManualClock) -> None:
    queues = Queues(queueing.Settings(max_acquiring=1), manual_clock)
    now = manual_clock.monotonic()
    first = queues.enter("a", "va", 10, now + 60)
    relaxed, urgent = queues.enter("b", "vb", 10, now + 50), queues.enter("c", "vc", 10, now + 1)
    assert first.turn.done()
    assert not relaxed.turn.done()
    assert not urgent.turn.done()
    queues.granted(first)
    assert urgent.turn.done()
    assert not relaxed.turn.done()


async def test_an_expired_request_is_told_and_never_goes_on(manual_clock: ManualClock) -> None:
    queues = Queues(queueing.Settings(max_acquiring=1), manual_clock)
    now = manual_clock.monotonic()
    first = queues.enter("a", "va", 10, now + 60)
    late, fine = queues.enter("b", "vb", 10, now + 1), queues.enter("b", "vb", 10, now + 60)
    manual_clock.advance(2)
    queues.granted(first)
    with pytest.raises(DeadlineExceeded, match="it was not executed"):
        late.turn.result()
    assert late.phase is Phase.QUEUED
    assert fine.phase is Phase.ACQUIRING
    queues.leave(late, Outcome.EXPIRED)


async def test_idle_state_is_bounded(manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VERSIONS", 3)
    queues = Queues(LIMITS, manual_clock)
    busy = queues.enter("f", "busy", 10, manual_clock.monotonic() + 1e6)
    for number in range(5):
        manual_clock.advance(1)
        queues.leave(queues.enter("f", f"v{number}", 10, manual_clock.monotonic() + 60), Outcome.CANCELLED)
    assert {row.version_id for row in queues.rows()} == {"busy", "v3", "v4"}
    manual_clock.advance(100)
    assert queues.forget_idle(100.5) == 1
    assert queues.forget_idle(100) == 1
    assert {row.version_id for row in queues.rows()} == {"busy"}
    queues.leave(busy, Outcome.COMPLETED)


async def test_a_node_full_of_busy_versions_refuses_one_more(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_VERSIONS", 1)
    queues = Queues(LIMITS, manual_clock)
    queues.enter("f", "v0", 10, manual_clock.monotonic() + 60)
    with pytest.raises(ResourceExhausted, match="1 versions") as refused:
        queues.enter("f", "v1", 10, manual_clock.monotonic() + 60)
    assert refused.value.retry_after_s is not None
