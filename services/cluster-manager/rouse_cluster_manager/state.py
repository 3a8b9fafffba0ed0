"""States: the transition table of an instance, and how a function's state is told from its instances."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto

from rouse_common.statemachine import StateMachine
from rouse_contracts import functions


class InstanceState(Enum):
    """As in rouse.cluster.v1."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    READY = "READY"
    STOPPING = "STOPPING"
    ENDED = "ENDED"
    FAILED = "FAILED"
    LOST = "LOST"


class Report(Enum):
    """What is said of an instance."""

    STARTED = auto()
    LOADED = auto()
    STOP_BEGUN = auto()
    GONE = auto()
    BROKE = auto()
    NODE_GONE = auto()


_ENDS = {Report.GONE: InstanceState.ENDED, Report.BROKE: InstanceState.FAILED, Report.NODE_GONE: InstanceState.LOST}
_LIVE = (InstanceState.PENDING, InstanceState.STARTING, InstanceState.READY, InstanceState.STOPPING)

TRANSITIONS: dict[tuple[InstanceState, Report], InstanceState] = {
    (InstanceState.PENDING, Report.STARTED): InstanceState.STARTING,
    # The report that it started may have been lost.
    (InstanceState.PENDING, Report.LOADED): InstanceState.READY,
    (InstanceState.PENDING, Report.STOP_BEGUN): InstanceState.STOPPING,
    (InstanceState.STARTING, Report.LOADED): InstanceState.READY,
    (InstanceState.STARTING, Report.STOP_BEGUN): InstanceState.STOPPING,
    (InstanceState.READY, Report.STOP_BEGUN): InstanceState.STOPPING,
} | {(state, report): end for state in _LIVE for report, end in _ENDS.items()}

TERMINAL = frozenset(_ENDS.values())
REPORT_OF = {
    InstanceState.STARTING: Report.STARTED,
    InstanceState.READY: Report.LOADED,
    InstanceState.STOPPING: Report.STOP_BEGUN,
    InstanceState.ENDED: Report.GONE,
    InstanceState.FAILED: Report.BROKE,
    InstanceState.LOST: Report.NODE_GONE,
}


def at(now: float) -> datetime:
    """Seconds since 1970 as a time in UTC."""
    return datetime.fromtimestamp(now, UTC)


def machine(instance_id: str, state: str, reason: str, since: datetime) -> StateMachine[InstanceState, Report]:
    """An instance's state as it was stored."""
    return StateMachine(f"instance {instance_id}", TRANSITIONS, InstanceState(state), reason, since.timestamp())


@dataclass(frozen=True)
class InstanceView:
    """What a function's state depends on."""

    instance_id: str
    state: str
    reason: str
    created_at: datetime
    was_ready: bool


def function_state(
    deleting: bool, instances: Iterable[InstanceView], tapes: int = 0
) -> tuple[functions.FunctionState, str]:
    """A function's state and its reason, told from instances of the active version, and from how many tapes of it a
    node has.

    FAILED is a last start that failed; an instance that had served and died leaves the function SLEEPING.
    """
    state, reason = _state_of_instances(deleting, instances)
    if state is functions.FUNCTION_STATE_SLEEPING and tapes:
        answer = "1 tape answers" if tapes == 1 else f"{tapes} tapes answer"
        reason = f"asleep: {answer} without a process; {reason}"
    return state, reason


def _state_of_instances(deleting: bool, instances: Iterable[InstanceView]) -> tuple[functions.FunctionState, str]:
    if deleting:
        return functions.FUNCTION_STATE_DELETING, "it is being deleted"
    ordered = sorted(instances, key=lambda instance: (instance.created_at, instance.instance_id))
    if not ordered:
        return functions.FUNCTION_STATE_SLEEPING, "no instance was started yet"
    states = {instance.state for instance in ordered}
    if "READY" in states:
        return functions.FUNCTION_STATE_READY, ""
    latest = ordered[-1]
    if states & {"PENDING", "STARTING"}:
        return functions.FUNCTION_STATE_WAKING, latest.reason
    if latest.state == "FAILED" and not latest.was_ready:
        return functions.FUNCTION_STATE_FAILED, latest.reason
    return functions.FUNCTION_STATE_SLEEPING, latest.reason
