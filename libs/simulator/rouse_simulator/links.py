"""Copies that share a link: each gets an equal part, up to what one copy alone can reach."""

from __future__ import annotations

from collections.abc import Callable

from rouse_simulator.clock import Clock


class _Copy:
    __slots__ = ("done", "left", "version")

    def __init__(self, size_bytes: float, done: Callable[[], None]) -> None:
        self.left, self.done, self.version = size_bytes, done, 0


class SharedLink:
    """One switch to host memory as a fluid: n copies run at min(flow, total / n) each.

    Args:
        flow_bytes_s: what one copy reaches.
        total_bytes_s: what all of them reach together.
    """

    def __init__(self, clock: Clock, flow_bytes_s: float, total_bytes_s: float) -> None:
        self._clock, self._flow, self._total = clock, flow_bytes_s, total_bytes_s
        self._copies: list[_Copy] = []
        self._settled_at = 0.0
        self._rate = flow_bytes_s

    def copy(self, size_bytes: int, done: Callable[[], None]) -> None:
        """Starts a copy; `done` is called at its end."""
        self._settle()
        self._copies.append(_Copy(float(size_bytes), done))
        self._share()

    def _settle(self) -> None:
        """Takes off what was moved since the last change."""
        moved = (self._clock.now - self._settled_at) * self._rate
        for copy in self._copies:
            copy.left -= moved
        self._settled_at = self._clock.now

    def _share(self) -> None:
        """Rates and ends after a change; ends that were foretold before it hold no more."""
        if not self._copies:
            return
        self._rate = min(self._flow, self._total / len(self._copies))
        for copy in self._copies:
            copy.version += 1
            self._clock.at(self._clock.now + max(copy.left, 0.0) / self._rate, self._end, copy, copy.version)

    def _end(self, copy: _Copy, version: int) -> None:
        if version != copy.version:
            return
        self._settle()
        self._copies.remove(copy)
        self._share()
        copy.done()
