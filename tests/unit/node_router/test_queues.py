"""The node's queues: every request leaves exactly once, in order, within every limit; batches and shares."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rouse_common.errors import ResourceExhausted
from rouse_common.statemachine import IllegalTransition
from rouse_contracts import functions, node
from rouse_node_router import queues as module
from rouse_node_router.queues import Queues
from rouse_node_router.tickets import Outcome, Phase, Ticket
from rouse_node_router.versions import VersionQueue
from rouse_policy import queueing
from rouse_testkit.clock import ManualClock

LIMITS = queueing.Settings(max_acquiring=3, max_acquiring_per_version=2)

# What happens next: an arrival (version, time to its deadline, tenant, rows), time passing, or something to one of
# the requests or calls for a device that are here.
ARRIVE = st.tuples(
    st.just("arrive"), st.integers(0, 3), st.sampled_from([0.5, 2.0, 60.0]), st.sampled_from(["", "a", "b"])
)
PASS = st.tuples(st.just("pass"), st.sampled_from([0.1, 1.0]), st.none(), st.none())
TOUCH = st.tuples(
    st.sampled_from(["grant", "nothing", "lost", "again", "finish", "fail", "cancel"]),
    st.integers(0, 50),
    st.none(),
    st.none(),
)
EVENTS = st.lists(st.one_of(ARRIVE, ARRIVE, PASS, TOUCH, TOUCH), max_size=80)


class Asked:
    """A call for a device that is under way until the test grants it."""

    def __init__(self, queue: VersionQueue, head: Ticket) -> None:
        self.queue, self.head, self.cancelled = queue, head, False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """Queues whose calls for devices wait for the test."""

    def __init__(self, settings: queueing.Settings, clock: ManualClock) -> None:
        self.clock, self.queues = clock, Queues(settings, clock)
        self.asked: list[Asked] = []
        self.came = asyncio.Event()
        self.queues.asks_with(self._ask)

    def _ask(self, queue: VersionQueue, head: Ticket) -> Asked:
        self.asked.append(Asked(queue, head))
        self.came.set()
        return self.asked[-1]

    def enter(self, version: str = "v", *, left_s: float = 60.0, inputs: bytes = b"", **request: Any) -> Ticket:
        message = request_of(version, **request)
        return self.queues.enter(message, inputs, self.clock.monotonic() + left_s)

    @property
    def waiting_asks(self) -> list[Asked]:
        return [ask for ask in self.asked if not ask.cancelled]

    def grant(self, version: str = "") -> list[Ticket]:
        """Grants the oldest call, of a version if one is named: who goes."""
        ask = next(ask for ask in self.waiting_asks if version in ("", ask.queue.version_id))
        self.asked.remove(ask)
        members, reason = self.queues.granted(ask.queue, ask, self.clock.monotonic() + 1e6)
        assert reason
        return members


def request_of(
    version: str,
    *,
    capacity: int = 10,
    tenant: str = "",
    weight: int = 1,
    priority: int = 0,
    rows: int = 0,
    max_batch: int = 0,
    max_delay_us: int = 0,
) -> node.InferRequest:
    return node.InferRequest(
        function=f"f-{version}",
        version_id=version,
        request_id="r",
        queue_capacity=capacity,
        tenant=tenant,
        tenant_weight=weight,
        options=functions.RequestOptions(priority=priority),
        batching=functions.Batching(max_batch_size=max_batch, max_delay_us=max_delay_us),
        rows=rows,
    )


def inputs_of(rows: int, name: str = "x") -> bytes:
    tensor = functions.Tensor(name=name, datatype="UINT8", shape=[rows], data=bytes(rows))
    return functions.TensorBatch(tensors=[tensor]).SerializeToString()


class Life(World):
    """Plays the part of the requests' tasks and of gpu-server at random. Versions v2 and v3 are batchable."""

    def __init__(self) -> None:
        super().__init__(LIMITS, ManualClock())
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

    def arrive(self, version: int, left_s: float, tenant: str) -> None:
        version_id, rows = f"v{version}", version % 2 + 1 if version > 1 else 0
        self.arrived[version_id] += 1
        try:
            ticket = self.enter(
                version_id, left_s=left_s, inputs=inputs_of(rows), capacity=4, tenant=tenant, rows=rows,
                max_batch=3 if rows else 0,
            )  # fmt: skip
        except ResourceExhausted as error:
            self.refusals.append(error)
            self.ended[version_id, Outcome.REFUSED] += 1
        else:
            self.here.append(ticket)

    def touch(self, what: str, which: int) -> None:
        if what in ("grant", "nothing", "lost"):
            self.answer(what, which)
            return
        phases = {"again": Phase.EXECUTING, "finish": Phase.EXECUTING}
        fitting = [ticket for ticket in self.here if ticket.phase is phases.get(what, ticket.phase)]
        if not fitting:
            return
        ticket = fitting[which % len(fitting)]
        if what == "again":
            self.queues.unexecuted(ticket)
            self.queues.again(ticket)
        elif what == "finish":
            self.queues.executed(ticket.queue, 1, ticket.rows, 0.1)
            self.leave(ticket, Outcome.COMPLETED)
        elif what == "fail":
            self.leave(ticket, Outcome.FAILED)
        else:
            ticket.turn.cancel()
            self.leave(ticket, Outcome.CANCELLED)

    def answer(self, what: str, which: int) -> None:
        """One of the calls for a device ends."""
        if not self.waiting_asks:
            return
        ask = self.waiting_asks[which % len(self.waiting_asks)]
        self.asked.remove(ask)
        if what == "grant":
            members, _ = self.queues.granted(ask.queue, ask, self.clock.monotonic() + 1000)
            assert sum(ticket.rows for ticket in members) <= 3 or len(members) == 1
            for ticket in members:
                ticket.turn.set_result(None)  # type: ignore[arg-type]
        else:
            error = ValueError("no device") if what == "nothing" else None
            self.queues.no_device(ask.queue, ask, lambda ticket: error, all_=which % 2 == 0)

    def settle(self) -> None:
        """Tasks act on what they were told, and timers run out."""
        for ticket in list(self.here):
            if ticket.phase is Phase.APART:
                assert ticket.turn.exception() is not None
                self.leave(ticket, Outcome.FAILED)
            elif ticket.phase is Phase.QUEUED and ticket.deadline <= self.clock.monotonic():
                assert not ticket.turn.done()
                self.leave(ticket, Outcome.EXPIRED)

    def check(self) -> None:
        rows = {row.version_id: row for row in self.queues.rows()}
        assert self.queues.asking == len(self.waiting_asks)
        assert {error.reason for error in self.refusals} <= {"QUEUE_FULL", "CANNOT_MEET_DEADLINE"}
        assert all(error.retry_after_s for error in self.refusals)
        for version_id, row in rows.items():
            here = [ticket for ticket in self.here if ticket.queue.version_id == version_id]
            assert row.executing == sum(ticket.phase is Phase.EXECUTING for ticket in here)
            assert row.queued == len(here) - row.executing
            asks = [ask for ask in self.waiting_asks if ask.queue.version_id == version_id]
            # Nobody waits in the queue without a reason, and nothing is asked for that nobody needs.
            assert len(asks) <= min(row.queued, LIMITS.max_acquiring_per_version)
            if row.queued:
                assert asks or self.queues.asking >= LIMITS.max_acquiring
            ended = {outcome: self.ended[version_id, outcome] for outcome in Outcome}
            assert row.ended == ended
            assert self.arrived[version_id] == len(here) + sum(ended.values())


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(EVENTS)
def test_every_request_leaves_exactly_once(events: list[tuple[str, float, float, str]]) -> None:
    async def play() -> None:
        life = Life()
        for what, number, left_s, tenant in events:
            if what == "arrive":
                life.arrive(int(number), left_s, tenant)
            elif what == "pass":
                life.clock.advance(number)
            else:
                life.touch(what, int(number))
            life.settle()
            life.check()
        while life.here:
            life.touch("grant", 0)
            life.touch("finish", 0)
            life.settle()
            life.check()
        assert life.queues.asking == 0
        life.clock.advance(1000)
        life.queues.forget_idle(999)
        assert life.queues.rows() == []

    asyncio.run(play())


async def test_first_come_first_served_within_a_version(manual_clock: ManualClock) -> None:
    world = World(queueing.Settings(max_acquiring_per_version=1), manual_clock)
    tickets = []
    for number in range(4):
        # Later ones are in more of a hurry, and still wait their turn.
        tickets.append(world.enter(left_s=10 - number))
        manual_clock.advance(0.01)
    assert [world.grant() for _ in tickets] == [[ticket] for ticket in tickets]
    for ticket in tickets:
        world.queues.leave(ticket, Outcome.COMPLETED)


async def test_a_higher_priority_overtakes_within_its_tenant_only(manual_clock: ManualClock) -> None:
    world = World(queueing.Settings(max_acquiring_per_version=1), manual_clock)
    slow, usual, other, urgent = (
        world.enter(priority=9),
        world.enter(),
        world.enter(tenant="b", priority=9),
        world.enter(priority=1),
    )
    order = [world.grant()[0] for _ in range(4)]
    assert order.index(other) < 2
    assert [ticket for ticket in order if ticket is not other] == [urgent, usual, slow]


async def test_tenants_are_served_by_their_weights(manual_clock: ManualClock) -> None:
    world = World(queueing.Settings(max_acquiring_per_version=1), manual_clock)
    for _ in range(60):
        world.enter(tenant="loud", capacity=200)
    for _ in range(60):
        world.enter(tenant="twice", weight=2, capacity=200)
    served = Counter(world.grant()[0].tenant for _ in range(60))
    assert 39 <= served["twice"] <= 41
    # Somebody who comes late is served next, and not for all the time that it was away.
    late = [world.enter(tenant="late", capacity=200) for _ in range(10)]
    assert late[0] in [world.grant()[0] for _ in range(3)]
    assert Counter(world.grant()[0].tenant for _ in range(8))["late"] in (1, 2, 3)


async def test_in_a_full_queue_a_flood_gives_way(manual_clock: ManualClock) -> None:
    world = World(LIMITS, manual_clock)
    world.enter(tenant="loud")
    running_one = world.grant()
    flood = [world.enter(tenant="loud") for _ in range(10)]
    with pytest.raises(ResourceExhausted, match="10 requests wait, 10 is the limit") as refused:
        world.enter(tenant="loud")
    assert refused.value.reason == "QUEUE_FULL"
    quiet = [world.enter(tenant="quiet") for _ in range(5)]
    for victim in flood[5:]:
        error = victim.turn.exception()
        assert isinstance(error, ResourceExhausted)
        assert (error.reason, victim.phase) == ("DISPLACED", Phase.APART)
        assert error.retry_after_s
        world.queues.leave(victim, Outcome.FAILED)
    with pytest.raises(ResourceExhausted, match="10 is the limit"):
        world.enter(tenant="quiet")
    for ticket in [*running_one, *flood[:5], *quiet]:
        world.queues.leave(ticket, Outcome.CANCELLED)


async def test_who_cannot_be_served_in_time_is_refused_when_it_comes(manual_clock: ManualClock) -> None:
    world = World(queueing.Settings(max_acquiring_per_version=1), manual_clock)
    tickets = [world.enter(capacity=100) for _ in range(20)]
    for ticket in tickets[:4]:
        assert world.grant() == [ticket]
        manual_clock.advance(0.5)
        world.queues.executed(ticket.queue, 1, 1, 0.5)
        world.queues.leave(ticket, Outcome.COMPLETED)
    with pytest.raises(ResourceExhausted, match=r"one is served every 500 ms.*4 s are left") as refused:
        world.enter(left_s=4.0, capacity=100)
    assert refused.value.reason == "CANNOT_MEET_DEADLINE"
    assert refused.value.retry_after_s == pytest.approx(15 * 0.5 + 0.5 - 4, abs=0.01)
    world.enter(left_s=9.0, capacity=100)
    # Another tenant has only its own requests before it, and as many of the others.
    world.enter(left_s=2.0, capacity=100, tenant="quiet")


async def test_what_is_queued_and_fits_leaves_together(manual_clock: ManualClock) -> None:
    world = World(queueing.Settings(max_acquiring_per_version=1), manual_clock)

    def enter(rows: int, name: str = "x") -> Ticket:
        return world.enter(inputs=inputs_of(rows, name), rows=rows, max_batch=8)

    first = enter(1)
    # It asked at once; who comes until a device is there goes along.
    assert len(world.asked) == 1
    others = [enter(2), enter(3)]
    strange, last = enter(1, "y"), enter(3)
    assert world.grant() == [first, *others]
    assert world.grant() == [strange]
    assert world.grant() == [last]
    assert world.asked == []


async def test_a_delay_is_waited_for_only_once_it_is_known_what_fits(manual_clock: ManualClock) -> None:
    world = World(LIMITS, manual_clock)

    def enter() -> Ticket:
        return world.enter(inputs=inputs_of(1), rows=1, max_batch=2, max_delay_us=10_000)

    first = enter()
    assert world.grant() == [first]
    world.queues.executed(first.queue, 1, 1, 0.001)
    world.queues.leave(first, Outcome.COMPLETED)
    waits = enter()
    assert world.asked == []
    company = enter()
    assert world.grant() == [waits, company]
    alone = enter()
    assert world.asked == []
    manual_clock.advance(0.02)
    world.came.clear()
    async with asyncio.timeout(10):
        await world.came.wait()
    assert world.grant() == [alone]


async def test_between_versions_the_earliest_deadline_goes_first(manual_clock: ManualClock) -> None:
    world = World(queueing.Settings(max_acquiring=1), manual_clock)
    world.enter("first")
    world.enter("relaxed", left_s=50)
    world.enter("urgent", left_s=1)
    assert [ask.queue.version_id for ask in world.asked] == ["first"]
    world.grant()
    assert [ask.queue.version_id for ask in world.asked] == ["urgent"]


async def test_between_versions_the_least_served_tenant_goes_first(manual_clock: ManualClock) -> None:
    world = World(queueing.Settings(max_acquiring=1), manual_clock)
    served = world.enter("a", tenant="loud")
    world.grant()
    world.queues.charge(served, 5.0)
    world.enter("b")
    world.enter("c", tenant="loud", left_s=1)
    world.enter("d", tenant="quiet", left_s=50)
    world.grant()
    assert [ask.queue.version_id for ask in world.asked] == ["d"]


async def test_an_expired_request_never_goes_on(manual_clock: ManualClock) -> None:
    world = World(queueing.Settings(max_acquiring_per_version=1), manual_clock)
    late, fine = world.enter(left_s=1), world.enter(left_s=60)
    manual_clock.advance(2)
    assert world.grant() == [fine]
    assert late.phase is Phase.QUEUED
    world.queues.leave(late, Outcome.EXPIRED)


async def test_a_lease_is_for_those_only_who_end_before_it(manual_clock: ManualClock) -> None:
    world = World(queueing.Settings(max_acquiring_per_version=1), manual_clock)
    patient, hasty = world.enter(left_s=1000), world.enter(left_s=10)
    (ask,) = world.asked
    members, _ = world.queues.granted(ask.queue, ask, manual_clock.monotonic() + 100)
    assert members == [hasty]
    world.asked.remove(ask)
    assert world.grant() == [patient]


async def test_what_comes_back_gets_its_old_place(manual_clock: ManualClock) -> None:
    world = World(queueing.Settings(max_acquiring_per_version=1), manual_clock)
    tickets = []
    for _ in range(3):
        tickets.append(world.enter())
        manual_clock.advance(0.01)
    first = world.grant()[0]
    world.queues.unexecuted(first)
    assert world.queues.rows()[0].queued == 3
    world.queues.again(first)
    assert [world.grant()[0] for _ in range(3)] == tickets


async def test_idle_state_is_bounded_and_what_was_counted_is_kept(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_VERSIONS", 3)
    world = World(LIMITS, manual_clock)
    busy = world.enter("busy", left_s=1e6)
    for number in range(5):
        manual_clock.advance(1)
        world.queues.leave(world.enter(f"v{number}"), Outcome.CANCELLED)
    queues = world.queues
    assert {row.version_id for row in queues.rows()} == {"busy", "v3", "v4"}
    manual_clock.advance(100)
    assert queues.forget_idle(100.5) == 1
    assert queues.forget_idle(100) == 1
    assert {row.version_id for row in queues.rows()} == {"busy"}
    assert {queue.version_id for queue in queues.known()} == {"busy", "v2", "v3", "v4"}
    queues.leave(world.enter("v3"), Outcome.CANCELLED)
    assert {row.version_id: row.ended[Outcome.CANCELLED] for row in queues.rows()} == {"busy": 0, "v3": 2}
    queues.leave(busy, Outcome.COMPLETED)


async def test_a_node_full_of_busy_versions_refuses_one_more(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_VERSIONS", 1)
    world = World(LIMITS, manual_clock)
    world.enter("v0")
    with pytest.raises(ResourceExhausted, match="1 versions") as refused:
        world.enter("v1")
    assert refused.value.retry_after_s is not None
