"""Who computes where: single decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rouse_policy.scheduling import (
    DISK,
    HOST,
    Decision,
    Executor,
    Hold,
    Model,
    Phase,
    Resident,
    Settings,
    Snapshot,
    State,
    decide,
    fits_at_all,
    patience_s,
)
from rouse_testkit.pools import NOW, device, loads, places, resting, snapshot, waiter


def decided(view: Snapshot, now: float = NOW, state: State | None = None) -> Decision:
    return decide(view, state or State(), Settings(), now)[0]


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


def test_who_is_answered_by_tapes_needs_a_device_and_no_instance() -> None:
    taped = [replace(waiter(ticket), tapes=True) for ticket in (1, 2, 3)]
    view = snapshot([device("d0"), device("d1")], taped, [resting("a", "d0"), resting("a", "d1")], [])
    assert places(decided(view)) == [(1, "d0", ""), (2, "d1", "")]
    assert "a tape answers" in decided(view).grants[0].reason
    # The model is brought for it as for any other, and who needs an instance waits on.
    assert loads(decided(snapshot([device()], [waiter(1), taped[1]], [], []))) == [("a", "d0")]
    alone = snapshot([device()], [waiter(1), taped[1]], [resting("a")], [])
    assert places(decided(alone)) == [(2, "d0", "")]


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
