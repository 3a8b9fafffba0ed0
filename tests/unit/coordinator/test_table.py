from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from rouse_common.errors import ResourceExhausted
from rouse_common.statemachine import IllegalTransition
from rouse_contracts.functions import FunctionSpec, FunctionVersion
from rouse_coordinator.table import MAX_ENDED, TERMINAL, TRANSITIONS, Event, RegistrationTable, State
from rouse_testkit.clock import ManualClock

VERSION = FunctionVersion(version_id="v1", spec=FunctionSpec(name="f"))
LIMIT = 3


def table(limit: int = LIMIT) -> RegistrationTable:
    return RegistrationTable(limit, ManualClock())


def test_every_state_can_end_and_terminal_ones_stay() -> None:
    for state in State:
        reachable, frontier = {state}, [state]
        while frontier:
            here = frontier.pop()
            for (source, _), target in TRANSITIONS.items():
                if source is here and target not in reachable:
                    reachable.add(target)
                    frontier.append(target)
        assert reachable & TERMINAL
        if state in TERMINAL:
            assert reachable == {state}


def test_an_instance_is_added_once_and_the_limit_counts_live_ones() -> None:
    rows = table(1)
    assert rows.add("a", VERSION)
    assert not rows.add("a", VERSION)
    with pytest.raises(ResourceExhausted) as caught:
        rows.add("b", VERSION)
    assert caught.value.reason == "INSTANCE_LIMIT"
    rows.apply("a", Event.FAILED, "gone")
    assert not rows.add("a", VERSION)
    assert rows.add("b", VERSION)


def test_ended_rows_are_bounded_and_the_oldest_go_first() -> None:
    clock = ManualClock()
    rows = RegistrationTable(1, clock)
    for number in range(MAX_ENDED + 5):
        rows.add(f"i{number}", VERSION)
        rows.apply(f"i{number}", Event.FAILED, "gone")
        clock.advance(1)
    assert len(list(rows.rows())) == MAX_ENDED
    assert rows.get("i4") is None
    assert rows.get("i5") is not None


class Life(RuleBasedStateMachine):
    """Any order of events: what the table allows is what the transition table says, and its rows make sense."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.table = table()
        self.expected: dict[str, State] = {}
        self.number = 0

    @rule(target=ids)
    def add(self) -> str:
        self.number += 1
        instance_id = f"i{self.number}"
        live = sum(1 for state in self.expected.values() if state not in TERMINAL)
        if live >= LIMIT:
            with pytest.raises(ResourceExhausted):
                self.table.add(instance_id, VERSION)
        else:
            assert self.table.add(instance_id, VERSION)
            self.expected[instance_id] = State.PENDING
        return instance_id

    @rule(instance_id=ids, event=st.sampled_from(Event))
    def happen(self, instance_id: str, event: Event) -> None:
        state = self.expected.get(instance_id)
        if state is None:
            with pytest.raises(KeyError):
                self.table.apply(instance_id, event, "why")
            return
        following = TRANSITIONS.get((state, event))
        if following is None:
            with pytest.raises(IllegalTransition):
                self.table.apply(instance_id, event, "why")
            return
        row = self.table.apply(instance_id, event, f"because of {event.name}", pid=7, address="unix:/s")
        assert (row.state, row.machine.reason) == (following, f"because of {event.name}")
        self.expected[instance_id] = following

    @rule(instance_id=consumes(ids))
    def forget(self, instance_id: str) -> None:
        """Not chosen again, so that other rows move on."""

    @invariant()
    def rows_agree(self) -> None:
        rows = {row.instance_id: row for row in self.table.rows()}
        assert {name: row.state for name, row in rows.items()} == self.expected
        assert self.table.live_count == sum(1 for row in rows.values() if not row.terminal) <= LIMIT
        for row in rows.values():
            assert bool(row.address) == (row.state is State.READY)
            assert not (row.terminal and row.pid)
            assert row.pid == 0 or row.state is not State.PENDING


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
