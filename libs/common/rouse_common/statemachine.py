"""State machines by table: what is not in the table raises, and each state carries its reason and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalTransition(RuntimeError):
    """An event that the present state does not allow: a fault in our own code."""


@dataclass(frozen=True)
class StateMachine(Generic[S, E]):
    """One subject's state. Immutable: `after` gives the next one.

    Args:
        name: the subject, for messages.
        table: next state by state and event.
        state, reason, since: where it is, why, and since when (seconds since 1970).
    """

    name: str
    table: Mapping[tuple[S, E], S]
    state: S
    reason: str
    since: float

    def after(self, event: E, reason: str, now: float) -> StateMachine[S, E]:
        """The machine after an event. Raises IllegalTransition."""
        following = self.table.get((self.state, event))
        if following is None:
            raise IllegalTransition(f"{self.name}: {event.name} is not allowed in {self.state.name} ({self.reason})")
        return StateMachine(self.name, self.table, following, reason, now)

    def allows(self, event: E) -> bool:
        return (self.state, event) in self.table
