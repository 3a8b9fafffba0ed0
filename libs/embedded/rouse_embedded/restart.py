"""When a process that ended is started again: a pure decision."""

from __future__ import annotations

from dataclasses import dataclass

BAD_CONFIGURATION = 2


@dataclass(frozen=True)
class RestartSettings:
    """Args:
    first_s, factor, longest_s: the wait before the first restart, its growth, and its bound, seconds.
    stable_s: a process that ran this long starts again as if it had never failed.
    start_attempts: starts in a row that may end before the process was ever ready.
    """

    first_s: float = 0.1
    factor: float = 2.0
    longest_s: float = 10.0
    stable_s: float = 10.0
    start_attempts: int = 5


@dataclass(frozen=True)
class RestartState:
    """What is remembered of a process: how often in a row it failed, and whether it ever was ready."""

    failures: int = 0
    was_ready: bool = False


@dataclass(frozen=True)
class Exit:
    """How a process ended: its exit code (a negative signal number where a signal ended it), how long it
    ran, seconds, and whether it was ready at some time of this run."""

    code: int
    ran_s: float
    ready: bool


@dataclass(frozen=True)
class Restart:
    """Start again after `delay_s`, or never where `give_up`; `reason` says why, with the numbers."""

    delay_s: float
    give_up: bool
    reason: str


def decide(exit: Exit, state: RestartState, settings: RestartSettings) -> tuple[Restart, RestartState]:
    """Whether and when to start again a process that nobody asked to stop.

    Gives up only on a process that was never ready: its configuration is wrong, or it failed
    `start_attempts` times. One that has worked is started again for as long as the mesh lives.
    """
    was_ready = state.was_ready or exit.ready
    failures = 1 if exit.ran_s >= settings.stable_s else state.failures + 1
    following = RestartState(failures, was_ready)
    ended = f"ended by signal {-exit.code}" if exit.code < 0 else f"ended with code {exit.code}"
    if not was_ready and exit.code == BAD_CONFIGURATION:
        return Restart(0.0, True, f"{ended}: its configuration is wrong, starting it again would not help"), following
    if not was_ready and failures >= settings.start_attempts:
        return Restart(0.0, True, f"{ended}, the {failures}th time without ever being ready"), following
    delay_s = settings.longest_s
    if failures < 64:  # past that the power does not fit a float for any sensible factor
        delay_s = min(delay_s, settings.first_s * settings.factor ** (failures - 1))
    return Restart(delay_s, False, f"{ended} after {exit.ran_s:.1f} s, failure {failures} in a row"), following
