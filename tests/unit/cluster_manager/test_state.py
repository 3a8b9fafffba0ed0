"""States of instances, and of functions as told from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_cluster_manager.state import (
    REPORT_OF,
    TERMINAL,
    TRANSITIONS,
    InstanceState,
    InstanceView,
    Report,
    at,
    function_state,
    machine,
)
from rouse_contracts import cluster, functions


def test_every_state_of_the_contract_is_known() -> None:
    names = {name.removeprefix("INSTANCE_STATE_") for name in dict(cluster.InstanceState.items())} - {"UNSPECIFIED"}
    assert {state.value for state in InstanceState} == names
    assert set(REPORT_OF) == set(InstanceState) - {InstanceState.PENDING}


@given(st.lists(st.sampled_from(Report), max_size=12))
def test_whatever_is_reported_no_instance_comes_back_from_its_end(reports: list[Report]) -> None:
    current = machine("i", "PENDING", "", at(0))
    ended = False
    for report in reports:
        if not current.allows(report):
            continue
        assert not ended
        current = current.after(report, "r", 1.0)
        ended = current.state in TERMINAL
    assert current.state in InstanceState


@pytest.mark.parametrize("state", [state for state in InstanceState if state not in TERMINAL])
def test_every_live_state_can_end_in_every_way(state: InstanceState) -> None:
    ends = {TRANSITIONS[state, report] for report in (Report.GONE, Report.BROKE, Report.NODE_GONE)}
    assert ends == TERMINAL


def view(state: str, at_s: float, reason: str = "", *, was_ready: bool = False) -> InstanceView:
    return InstanceView(f"i{at_s}", state, reason, at(at_s), was_ready)


SLEEPING, WAKING = functions.FUNCTION_STATE_SLEEPING, functions.FUNCTION_STATE_WAKING
READY, FAILED = functions.FUNCTION_STATE_READY, functions.FUNCTION_STATE_FAILED


@pytest.mark.parametrize(
    ("instances", "state", "reason"),
    [
        ([], SLEEPING, "no instance was started yet"),
        ([view("PENDING", 1)], WAKING, ""),
        ([view("STARTING", 1)], WAKING, ""),
        ([view("READY", 1, was_ready=True), view("STARTING", 2)], READY, ""),
        ([view("STOPPING", 1, "idle", was_ready=True)], SLEEPING, "idle"),
        ([view("ENDED", 1, "idle", was_ready=True)], SLEEPING, "idle"),
        ([view("FAILED", 1, "no module x")], FAILED, "no module x"),
        ([view("FAILED", 1, "no module x"), view("PENDING", 2)], WAKING, ""),
        ([view("FAILED", 1, "killed", was_ready=True)], SLEEPING, "killed"),
        ([view("LOST", 1, "node n0")], SLEEPING, "node n0"),
        ([view("READY", 1, was_ready=True), view("FAILED", 2, "no room")], READY, ""),
    ],
)
def test_a_function_s_state_is_told_from_its_instances(instances: list[InstanceView], state: int, reason: str) -> None:
    assert function_state(False, instances) == (state, reason)
    assert function_state(False, list(reversed(instances))) == (state, reason)
    assert function_state(True, instances)[0] == functions.FUNCTION_STATE_DELETING


def test_what_sleeps_says_how_many_tapes_answer() -> None:
    state, reason = function_state(False, [], 1)
    assert (state, reason) == (SLEEPING, "asleep: 1 tape answers without a process; no instance was started yet")
    assert "2 tapes answer" in function_state(False, [], 2)[1]
    assert "tapes" not in function_state(True, [], 2)[1]
