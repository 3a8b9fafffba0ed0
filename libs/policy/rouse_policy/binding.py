"""Which device a function is bound to for good: early binding, which late binding is compared with.

A function takes its memory on one device when it is deployed and keeps it. It goes to the device with most free memory,
so that functions spread evenly; where none has room it is not executed at all (Torpor, 7.3: 72 of 160).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Snapshot:
    """Args:
    need_bytes: what the function takes of a device for as long as it lives.
    free: devices with the bytes that nobody took.
    """

    need_bytes: int
    free: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Settings:
    """There is nothing to set."""


@dataclass(frozen=True)
class State:
    """What was bound before is in the snapshot."""


@dataclass(frozen=True)
class Decision:
    """The device, None where none has room, and why."""

    device: str | None
    reason: str


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Binds one function."""
    best = min(snapshot.free, key=lambda entry: (-entry[1], entry[0]), default=None)
    if best is None:
        return Decision(None, "there is no device"), state
    device, free_bytes = best
    numbers = f"needs {snapshot.need_bytes} B, most is free on {device}: {free_bytes} B"
    return Decision(device if free_bytes >= snapshot.need_bytes else None, numbers), state
