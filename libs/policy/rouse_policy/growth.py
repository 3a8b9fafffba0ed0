"""Which models leave a device because others there turned out to need more memory than was known when they came.

What a model needs beside its weights is measured where nobody has said it, so that models which fitted together may
do so no longer. Nothing is loaded then, so nobody claims room: as many leave as it takes for the rest to fit, chosen as
for a request that is overdue (see `eviction`), the least recently used first. Where too much of what is there executes
or loads, nothing leaves before that has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from rouse_policy import eviction
from rouse_policy.board import BEFORE_ALL, Board
from rouse_policy.pool import Settings, Snapshot
from rouse_policy.pool import State as Pool


@dataclass(frozen=True)
class State:
    """Growth remembers nothing."""


@dataclass(frozen=True)
class Leave:
    """A model that leaves a device, and why it and not another."""

    device: str
    version: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """Who leaves; `reason` says what of each device with its numbers, and is empty where all fit."""

    leaves: tuple[Leave, ...]
    reason: str


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Chooses who leaves each device whose models do not fit there together; `snapshot` as for `scheduling`."""
    board = _Growth(snapshot, Pool(), settings, now)
    plans = {name: board.plan(name) for name in board.devices}
    leaves = tuple(
        Leave(name, victim.version, victim.reason) for name, plan in plans.items() for victim in plan.victims
    )
    full = [f"{name}: {plan.reason}" for name, plan in plans.items() if plan.victims or not plan.fits]
    return Decision(leaves, "; ".join(full)), state


class _Growth(Board):
    def plan(self, name: str) -> eviction.Decision:
        """Who has to leave for what stays to fit."""
        return self._make_room(name, eviction.Claim(BEFORE_ALL, 0, 0, overdue=True), lambda _: True)
