"""Machines by table: only what the table allows happens, and the past stays as it was."""

from __future__ import annotations

from enum import Enum, auto

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common.statemachine import IllegalTransition, StateMachine


class State(Enum):
    IDLE = auto()
    BUSY = auto()
    GONE = auto()


class Event(Enum):
    START = auto()
    END = auto()
    LEAVE = auto()


TABLE = {
    (State.IDLE, Event.START): State.BUSY,
    (State.BUSY, Event.END): State.IDLE,
    (State.IDLE, Event.LEAVE): State.GONE,
}


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_it_follows_the_table_and_nothing_else(events: list[Event]) -> None:
    machine, state = StateMachine("it", TABLE, State.IDLE, "made", 0.0), State.IDLE
    for time, event in enumerate(events, start=1):
        expected = TABLE.get((state, event))
        assert machine.allows(event) == (expected is not None)
        if expected is None:
            before = machine
            with pytest.raises(IllegalTransition, match=f"it: {event.name} is not allowed in {state.name}"):
                machine.after(event, "why not", float(time))
            assert machine == before
        else:
            following = machine.after(event, f"reason {time}", float(time))
            assert (machine.state, following.state) == (state, expected)
            assert (following.reason, following.since) == (f"reason {time}", float(time))
            machine, state = following, expected
