"""Who computes where: single decisions, and a node in virtual time that runs on them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rouse_policy import eviction
from rouse_policy.scheduling import (
    DISK,
    HOST,
    Decision,
    Device,
    Executor,
    Grant,
    Hold,
    Model,
    Phase,
    Resident,
    Settings,
    Snapshot,
    State,
    Waiter,
    decide,
    fits_at_all,
    fits_beside,
    patience_s,
)

NOW = 100.0
FAR = 1e9


def device(name: str = "d0", capacity: int = 100, busy: bool = False) -> Device:
    return Device(name, capacity, busy)


def waiter(ticket: int, version: str = "a", waited: float = 0.0, deadline: float = FAR) -> Waiter:
    return Waiter(ticket, version, NOW - waited, deadline)


def snapshot(
    devices: list[Device],
    waiters: list[Waiter],
    residents: list[Resident] | None = None,
    executors: list[Executor] | None = None,
    **models: Model,
) -> Snapshot:
    every = {w.version for w in waiters} | {r.version for r in residents or []}
    sizes = {v: Model(v, 40, 0) for v in every} | models
    runs = [Executor(f"i-{v}", v) for v in sorted(every)] if executors is None else executors
    return Snapshot(tuple(devices), tuple(residents or []), sizes, tuple(runs), tuple(waiters))


def decided(view: Snapshot, now: float = NOW, state: State | None = None) -> Decision:
    return decide(view, state or State(), Settings(), now)[0]


def resting(version: str, on: str = "d0", **more: Any) -> Resident:
    return Resident(version, on, Phase.RESTING, **more)


def places(decision: Decision) -> list[tuple[int, str, str]]:
    return [(g.ticket, g.device, g.instance) for g in decision.grants]


def loads(decision: Decision) -> list[tuple[str, str]]:
    return [(load.version, load.device) for load in decision.loads]


def test_resident_and_idle_is_granted_at_once_where_an_executor_is_attached() -> None:
    view = snapshot(
        [device("d0"), device("d1")],
        [waiter(1)],
        [resting("a", "d0"), resting("a", "d1")],
        [Executor("i1", "a", None), Executor("i2", "a", "d1")],
    )
    assert places(decided(view)) == [(1, "d1", "i2")]


def test_an_idle_device_with_room_is_loaded_before_one_that_has_to_evict() -> None:
    view = snapshot([device("d0", 40), device("d1", 100)], [waiter(1)], [resting("b", "d0")])
    assert loads(decided(view)) == [("a", "d1")]


def test_room_is_made_on_an_idle_device_before_a_busy_one_is_loaded() -> None:
    view = snapshot([device("d0", 50), device("d1", 100, busy=True)], [waiter(1)], [resting("b", "d0")])
    decision = decided(view)
    assert loads(decision) == [("a", "d0")]
    assert [v.version for v in decision.loads[0].victims] == ["b"]


def test_a_load_overlaps_what_executes_where_every_device_is_busy() -> None:
    executing = Resident("b", "d0", Phase.EXECUTING)
    view = snapshot([device("d0", 100, busy=True)], [waiter(1)], [executing])
    assert loads(decided(view)) == [("a", "d0")]
    # Without room beside what executes there is nothing to do but wait.
    tight = snapshot([device("d0", 70, busy=True)], [waiter(1)], [executing])
    assert not decided(tight).loads


def test_a_model_on_a_busy_device_is_waited_for_rather_than_loaded_on_another_busy_one() -> None:
    view = snapshot([device("d0", 100, busy=True), device("d1", 100, busy=True)], [waiter(1)], [resting("a", "d0")])
    assert not decided(view).loads


def test_a_second_copy_evicts_others_only_after_a_while() -> None:
    def view(waited: float) -> Snapshot:
        present = [resting("a", "d0"), resting("b", "d1")]
        return snapshot([device("d0", 50, busy=True), device("d1", 50)], [waiter(1, waited=waited)], present)

    fresh = decided(view(0.0))
    assert not fresh.loads
    assert fresh.wake_at == pytest.approx(NOW + Settings().replica_after_s)
    assert loads(decided(view(0.3))) == [("a", "d1")]


def test_a_second_request_does_not_start_the_same_load_again() -> None:
    view = snapshot([device("d0")], [waiter(1), waiter(2)], [], [Executor("i1", "a"), Executor("i2", "a")])
    assert loads(decided(view)) == [("a", "d0")]
    under_way = replace(view, residents=(Resident("a", "d0", Phase.LOADING),))
    assert not decided(under_way).loads


def test_who_has_no_free_executor_waits_and_loads_nothing() -> None:
    assert decided(snapshot([device()], [waiter(1)], [], [])).loads == ()


def test_who_wants_one_instance_gets_no_other_one_and_holds_nobody_up() -> None:
    bound = replace(waiter(1), instance="i2")
    runs = [Executor("i1", "a"), Executor("i2", "a")]
    view = snapshot([device("d0"), device("d1")], [bound, waiter(2)], [resting("a", "d0")], runs)
    assert places(decided(view)) == [(1, "d0", "i2")]
    busy = snapshot([device("d0")], [bound, waiter(2)], [resting("a", "d0")], runs[:1])
    assert places(decided(busy)) == [(2, "d0", "i1")]


def test_without_weights_no_device_is_taken() -> None:
    view = snapshot([device(busy=True)], [waiter(1)], a=Model("a", 0, 0))
    assert places(decided(view)) == [(1, HOST, "i-a")]


def test_the_source_is_host_memory_else_a_sibling_else_disk() -> None:
    def source(model: Model, *residents: Resident) -> str:
        view = snapshot([device("d0", busy=True), device("d1")], [waiter(1)], list(residents), a=model)
        return decided(view).loads[0].source

    assert source(Model("a", 40, 0, HOST), Resident("a", "d0", Phase.EXECUTING)) == HOST
    assert source(Model("a", 40, 0, DISK), Resident("a", "d0", Phase.EXECUTING)) == "d0"
    assert source(Model("a", 40, 0, DISK)) == DISK


def test_an_overdue_request_holds_a_device_against_later_ones_only() -> None:
    # d0 executes a model that leaves no room; an overdue request for `a` waits for it.
    view = snapshot(
        [device("d0", 60, busy=True)],
        [waiter(5, "a", waited=10.0), waiter(6, "b")],
        [Resident("b", "d0", Phase.EXECUTING)],
        [Executor("ia", "a"), Executor("ib", "b")],
    )
    decision, state = decide(view, State(), Settings(), NOW)
    assert state.holds == (Hold("d0", 5),)
    assert "d0 for request 5" in decision.reason
    # The execution ends: the later request for the resident model does not slip in again.
    idle = replace(view, devices=(device("d0", 60),), residents=(resting("b"),))
    decision, state = decide(idle, state, Settings(), NOW)
    assert not decision.grants
    assert loads(decision) == [("a", "d0")]
    assert state.holds == ()


def test_an_expired_request_neither_loads_nor_holds() -> None:
    view = snapshot([device()], [waiter(1, deadline=NOW)])
    assert decided(view) == Decision((), (), None, "1 wait, 0 start, 0 loads begin")


def test_a_stuck_copy_takes_its_memory_but_serves_nobody() -> None:
    view = snapshot([device("d0", 70)], [waiter(1, waited=10.0)], [Resident("b", "d0", Phase.STUCK)])
    assert not decided(view).loads
    other = snapshot([device("d0", 70), device("d1", 70)], [waiter(1, "b")], [Resident("b", "d0", Phase.STUCK)])
    assert loads(decided(other)) == [("b", "d1")]


def test_patience_shrinks_with_the_deadline() -> None:
    assert patience_s(waiter(1, deadline=NOW + 0.4), Settings()) == pytest.approx(0.1)
    assert patience_s(waiter(1), Settings()) == Settings().patience_s


def test_fits_at_all_counts_working_memory() -> None:
    assert fits_at_all(60, 40, (device(),))
    assert not fits_at_all(61, 40, (device(),))
    assert fits_at_all(0, 10**9, (device(),))


# ---- a node in virtual time ---------------------------------------------------------------------


@dataclass
class Node:
    """Executes decisions: loads take `load_s`, leases `execute_s`. Checks what must hold at every step."""

    devices: dict[str, int]
    models: dict[str, Model]
    instances: dict[str, str]
    settings: Settings
    load_s: float = 0.06
    execute_s: float = 0.03
    now: float = 0.0
    state: State = field(default_factory=State)
    residents: dict[tuple[str, str], Resident] = field(default_factory=dict)
    busy: dict[str, Grant] = field(default_factory=dict)
    working: dict[str, str] = field(default_factory=dict)
    waiting: list[Waiter] = field(default_factory=list)
    events: list[tuple[float, int, tuple[Any, ...]]] = field(default_factory=list)
    granted: dict[int, float] = field(default_factory=dict)
    arrived: dict[int, float] = field(default_factory=dict)
    swaps: int = 0
    count: int = 0
    names: int = 0
    tickets: list[int] = field(default_factory=list)
    # Pinned models that leave room for all others.
    stay: frozenset[str] = frozenset()

    def at(self, when: float, *event: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, event))

    def arrive(self, when: float, version: str) -> int:
        self.names += 1
        self.at(when, "arrive", self.names, version)
        return self.names

    def run(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, event = heapq.heappop(self.events)
            getattr(self, f"on_{event[0]}")(*event[1:])
            self.decide()
            self.check()

    def on_wake(self) -> None:
        pass

    def on_arrive(self, name: int, version: str) -> None:
        self.arrived[name] = self.now
        self.tickets.append(name)
        self.waiting.append(Waiter(len(self.tickets) - 1, version, self.now, FAR))

    def on_loaded(self, version: str, name: str) -> None:
        self.residents[version, name] = Resident(version, name, Phase.RESTING, self.now, self.now)

    def on_done(self, instance: str, name: str) -> None:
        del self.working[instance]
        if name != HOST:
            version = self.instances[instance]
            del self.busy[name]
            old = self.residents[version, name]
            self.residents[version, name] = replace(old, phase=Phase.RESTING, last_used_at=self.now)

    def decide(self) -> None:
        pinned = [m for m in self.models.values() if m.pinned and m.version in self.instances.values()]
        others = [m for m in self.models.values() if not m.pinned and m.size_bytes]
        view = Snapshot(
            tuple(Device(n, c, n in self.busy) for n, c in self.devices.items()),
            tuple(self.residents.values()),
            self.models,
            tuple(Executor(i, v) for i, v in self.instances.items() if i not in self.working),
            tuple(self.waiting),
            tuple(m.version for m in pinned if all(v != m.version for v, _ in self.residents)),
            max(others, key=lambda m: m.size_bytes + m.working_bytes, default=None),
        )
        decision, self.state = decide(view, self.state, self.settings, self.now)
        for load in decision.loads:
            for victim in load.victims:
                assert self.residents.pop((victim.version, load.device)).phase is Phase.RESTING
            assert (load.version, load.device) not in self.residents
            for victim in load.victims:
                elsewhere = [r for (v, _), r in self.residents.items() if v == victim.version]
                assert elsewhere or victim.version not in self.stay, "a pinned model left"
            self.residents[load.version, load.device] = Resident(load.version, load.device, Phase.LOADING)
            self.swaps += 1
            self.at(self.now + self.load_s, "loaded", load.version, load.device)
        for grant in decision.grants:
            self.grant(grant)
        if decision.wake_at is not None:
            assert decision.wake_at > self.now
            self.at(decision.wake_at, "wake")

    def grant(self, grant: Grant) -> None:
        request = next(w for w in self.waiting if w.ticket == grant.ticket)
        self.waiting.remove(request)
        assert grant.instance not in self.working
        assert self.instances[grant.instance] == request.version
        self.working[grant.instance] = grant.device
        if grant.device != HOST:
            assert grant.device not in self.busy
            key = (request.version, grant.device)
            assert self.residents[key].phase is Phase.RESTING
            self.residents[key] = replace(self.residents[key], phase=Phase.EXECUTING)
            self.busy[grant.device] = grant
        self.granted[self.tickets[grant.ticket]] = self.now
        self.at(self.now + self.execute_s, "done", grant.instance, grant.device)

    def check(self) -> None:
        for name, capacity in self.devices.items():
            here = [self.models[r.version] for r in self.residents.values() if r.device == name]
            assert sum(m.size_bytes for m in here) + max((m.working_bytes for m in here), default=0) <= capacity

    def waited(self, name: int) -> float:
        return self.granted[name] - self.arrived[name]


def test_a_request_for_memory_is_served_although_a_hot_model_is_never_idle() -> None:
    node = Node(
        {"d0": 50}, {v: Model(v, 40, 0, gap_s=0.01) for v in "ab"}, {"ia": "a", "ib": "b"}, Settings(patience_s=0.5)
    )
    # One model's requests come as fast as they can be executed, for ten seconds, and a few wait at any time.
    for step in range(330):
        node.arrive(max(0, step - 3) * node.execute_s, "a")
    late = node.arrive(0.995, "b")
    node.run(30.0)
    assert node.waited(late) <= 0.5 + node.execute_s + node.load_s + 1e-6
    # Until then the resident model's queue ran: it was not turned out at once.
    assert node.waited(late) >= 0.5
    assert len(node.granted) == 331


def test_two_hot_models_on_one_device_do_not_swap_at_every_request() -> None:
    def swaps(settings: Settings) -> int:
        node = Node({"d0": 50}, {v: Model(v, 40, 0, gap_s=0.05) for v in "ab"}, {"ia": "a", "ib": "b"}, settings)
        for step in range(200):
            node.arrive(step * 0.05, "ab"[step % 2])
        node.run(60.0)
        assert len(node.granted) == 200
        return node.swaps

    kept = swaps(Settings(patience_s=0.5, eviction=eviction.Settings(min_residency_s=0.25)))
    eager = swaps(Settings(patience_s=0.001, eviction=eviction.Settings(min_residency_s=0.0)))
    assert kept < eager / 3


arrivals = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 4)), min_size=1, max_size=60)


@settings(max_examples=150, deadline=None)
@given(
    arrivals,
    st.lists(st.integers(50, 160), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30), st.integers(1, 3)), min_size=5, max_size=5),
    st.integers(1, 2),
)
def test_everybody_is_served_and_memory_always_fits(
    requests: list[tuple[float, int]], capacities: list[int], shapes: list[tuple[int, int, int]], parallel: int
) -> None:
    devices = {f"d{i}": c for i, c in enumerate(capacities)}
    models: dict[str, Model] = {}
    instances: dict[str, str] = {}
    for number, (size, working, count) in enumerate(shapes):
        version = str(number)
        working = min(working, max(capacities) - size)
        models[version] = Model(version, size, working, gap_s=0.01 if number % 2 else FAR)
        instances |= {f"i{number}.{k}": version for k in range(count)}
    node = Node(devices, models, instances, Settings(loads_per_device=parallel))
    tickets = [node.arrive(when, str(version)) for when, version in sorted(requests)]
    node.run(1000.0)
    assert sorted(node.granted) == sorted(tickets), "somebody waits for ever"
    # Patience, and for each earlier request at most one execution and one load on the only device.
    for place, ticket in enumerate(tickets):
        bound = 0.5 + (place + 1) * (node.load_s + node.execute_s) + 0.5
        assert node.waited(ticket) <= bound


@settings(max_examples=150, deadline=None)
@given(
    arrivals,
    st.lists(st.integers(60, 160), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30), st.booleans()), min_size=5, max_size=5),
)
def test_pinned_models_come_first_and_stay_and_everybody_else_is_served(
    requests: list[tuple[float, int]], capacities: list[int], shapes: list[tuple[int, int, bool]]
) -> None:
    models: dict[str, Model] = {}
    for number, (size, working, pinned) in enumerate(shapes):
        working = min(working, max(capacities) - size)
        models[str(number)] = Model(str(number), size, working, pinned=pinned)
    devices = {f"d{i}": c for i, c in enumerate(capacities)}
    pins = [m for m in models.values() if m.pinned]
    largest = max(
        (m for m in models.values() if not m.pinned), key=lambda m: m.size_bytes + m.working_bytes, default=None
    )
    roomy = fits_beside(largest or Model("", 0, 0), pins, max(capacities))
    stay = frozenset(m.version for m in pins) if roomy else frozenset[str]()
    node = Node(devices, models, {f"i{v}": v for v in models}, Settings(), stay=stay)
    node.at(0.0, "wake")
    tickets = [node.arrive(when, str(version)) for when, version in sorted(requests)]
    node.run(1000.0)
    resident = {v for v, _ in node.residents if models[v].pinned}
    # What was brought has left room for the largest of the others, so nobody waits for ever; a pinned model that
    # would have left none is served like the others where there is room.
    served = {node.tickets.index(name) for name in node.granted}
    for place, name in enumerate(node.tickets):
        version = str(sorted(requests)[tickets.index(name)][1])
        assert place in served or (models[version].pinned and version not in resident), "somebody waits for ever"
    assert stay <= resident, "there was room for all that are pinned"


def test_a_pinned_model_is_brought_without_a_request_and_evicts_what_rests() -> None:
    pin = Model("p", 60, 0, pinned=True)
    view = replace(snapshot([device()], [], [resting("a")], [], p=pin), bring=("p",))
    decision = decided(view)
    assert loads(decision) == [("p", "d0")]
    assert [victim.version for victim in decision.loads[0].victims] == ["a"] or not decision.loads[0].victims
    assert "pinned" in decision.loads[0].reason
    # Beside it, a model of 50 would find no room on the only device: then it is not brought.
    assert not decided(replace(view, largest=Model("b", 50, 0))).loads
    assert loads(decided(replace(view, devices=(device(), device("d1")), largest=Model("b", 50, 0))))


def test_an_overdue_request_claims_a_device_where_it_fits_beside_what_is_pinned() -> None:
    pin = Model("p", 80, 0, pinned=True)
    devices = [device("d0", busy=True), device("d1", busy=True)]
    there = [Resident("p", "d0", Phase.RESTING), Resident("b", "d1", Phase.EXECUTING)]
    view = snapshot(devices, [waiter(1, waited=5)], there, a=Model("a", 70, 0), b=Model("b", 70, 0), p=pin)
    _, state = decide(view, State(), Settings(), NOW)
    assert state.holds == (Hold("d1", 1),)
