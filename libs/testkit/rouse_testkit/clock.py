"""A clock that a test owns."""

from __future__ import annotations


class ManualClock:
    """Implements rouse_common.clock.Clock; time passes only by `advance`."""

    def __init__(self, now: float = 1_800_000_000.0, monotonic: float = 1_000.0) -> None:
        self._now = now
        self._monotonic = monotonic

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Lets time pass on both clocks. Raises ValueError for a time that goes back."""
        if seconds < 0:
            raise ValueError(f"time does not go back, got {seconds} s")
        self._now += seconds
        self._monotonic += seconds
