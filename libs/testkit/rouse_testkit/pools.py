"""Snapshots of a pool for tests of the scheduling policy, in few words."""

from __future__ import annotations

from typing import Any

from rouse_policy.scheduling import (
    Decision,
    Device,
    Executor,
    Model,
    Phase,
    Resident,
    Snapshot,
    Waiter,
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


def resting(version: str, on: str = "d0", **more: Any) -> Resident:
    return Resident(version, on, Phase.RESTING, **more)


def places(decision: Decision) -> list[tuple[int, str, str]]:
    return [(g.ticket, g.device, g.instance) for g in decision.grants]


def loads(decision: Decision) -> list[tuple[str, str]]:
    return [(load.version, load.device) for load in decision.loads]
