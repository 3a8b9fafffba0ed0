"""The function registration table of a node (AsyFunc, section 5.2).

A row is an instance: which function and version it runs, in which role, and where its life stands. A row in a
terminal state has no process, no socket and no executor any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from rouse_common.clock import Clock
from rouse_common.errors import ResourceExhausted
from rouse_common.statemachine import StateMachine
from rouse_contracts.functions import FunctionVersion

# Ended rows that are kept, so that a repeated Start of one is recognised and people can read the reason.
MAX_ENDED = 256
RETRY_AFTER_S = 5.0


class Role(Enum):
    """Which part of a function an instance runs; AsyFunc's shadows hold some of its layers only."""

    BODY = "BODY"


class State(Enum):
    PENDING = "PENDING"
    STARTING = "STARTING"
    READY = "READY"
    STOPPING = "STOPPING"
    ENDED = "ENDED"
    FAILED = "FAILED"


class Event(Enum):
    LAUNCHED = "its process is being started, which may wait for a template"
    SPAWNED = "the process is there"
    LOADED = "the function is loaded and serves"
    STOP = "somebody asked to end it"
    EXITED = "the process is gone, as asked"
    FAILED = "the process is gone, or never was, and nobody asked for that"


TERMINAL = frozenset({State.ENDED, State.FAILED})
TRANSITIONS = {
    (State.PENDING, Event.LAUNCHED): State.STARTING,
    (State.PENDING, Event.STOP): State.STOPPING,
    (State.PENDING, Event.FAILED): State.FAILED,
    (State.STARTING, Event.SPAWNED): State.STARTING,
    (State.STARTING, Event.LOADED): State.READY,
    (State.STARTING, Event.STOP): State.STOPPING,
    (State.STARTING, Event.FAILED): State.FAILED,
    (State.READY, Event.STOP): State.STOPPING,
    (State.READY, Event.FAILED): State.FAILED,
    (State.STOPPING, Event.EXITED): State.ENDED,
}


@dataclass(frozen=True)
class Registration:
    """One row.

    Attributes:
        pid: of the process; 0 without one.
        address: unix:PATH of the ExecutorService; empty unless READY.
        isolation: what keeps it apart, in its own words; empty until it is READY.
    """

    instance_id: str
    version: FunctionVersion
    machine: StateMachine[State, Event]
    role: Role = Role.BODY
    pid: int = 0
    address: str = ""
    isolation: str = ""

    @property
    def state(self) -> State:
        return self.machine.state

    @property
    def function(self) -> str:
        return str(self.version.spec.name)

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL


@dataclass
class RegistrationTable:
    """All rows of the node.

    Args:
        max_instances: rows that may be in a state that is not terminal.
    """

    max_instances: int
    clock: Clock
    _rows: dict[str, Registration] = field(default_factory=dict)

    def add(self, instance_id: str, version: FunctionVersion) -> bool:
        """Adds a PENDING row; False where there is a row of that id already, in whatever state.

        Raises ResourceExhausted INSTANCE_LIMIT.
        """
        if instance_id in self._rows:
            return False
        if self.live_count >= self.max_instances:
            raise ResourceExhausted(
                "INSTANCE_LIMIT",
                f"{self.live_count} instances run on this node, {self.max_instances} may; stop one or use another node",
                retry_after_s=RETRY_AFTER_S,
                function=version.spec.name,
            )
        machine = StateMachine(
            f"instance {instance_id}", TRANSITIONS, State.PENDING, "accepted", self.clock.now()
        )  # fmt: skip
        self._rows[instance_id] = Registration(instance_id, version, machine)
        return True

    def apply(
        self,
        instance_id: str,
        event: Event,
        reason: str,
        *,
        pid: int | None = None,
        address: str = "",
        isolation: str = "",
    ) -> Registration:
        """Moves a row on and returns it. Raises IllegalTransition, KeyError where there is no such row."""
        row = self._rows[instance_id]
        machine = row.machine.after(event, reason, self.clock.now())
        gone = machine.state in TERMINAL
        row = replace(
            row,
            machine=machine,
            pid=0 if gone else row.pid if pid is None else pid,
            address=address if machine.state is State.READY else "",
            isolation=isolation or row.isolation,
        )
        self._rows[instance_id] = row
        if gone:
            self._forget_oldest()
        return row

    def get(self, instance_id: str) -> Registration | None:
        return self._rows.get(instance_id)

    def rows(self) -> Iterator[Registration]:
        """All rows in the order of their start, ended ones included."""
        return iter(tuple(self._rows.values()))

    @property
    def live_count(self) -> int:
        return sum(1 for row in self._rows.values() if not row.terminal)

    def _forget_oldest(self) -> None:
        ended = sorted((row for row in self._rows.values() if row.terminal), key=lambda row: row.machine.since)
        for row in ended[: max(0, len(ended) - MAX_ENDED)]:
            del self._rows[row.instance_id]
