"""Virtual time: events in the order of their time, and of their making among equals."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from rouse_simulator.arrivals import Arrivals

# Two events of one virtual instant may make each other; more of them than this without time passing is an error.
MAX_STANDSTILL = 1_000_000


class Clock:
    """The queue of what will happen. `now` is in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._made = 0

    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        """Calls `action` when it is time; a time that has passed is now."""
        self._made += 1
        heapq.heappush(self._heap, (max(when, self.now), self._made, action, arguments))

    def run(self, arrivals: Arrivals, arrive: Callable[[int], None], until: float) -> None:
        """Plays arrivals, each by calling `arrive` with its function's number, and events up to `until`.

        An arrival goes before an event of the same time. Raises RuntimeError where events make each other without
        time passing.
        """
        heap, standstill, last = self._heap, 0, -1.0
        times, functions = arrivals.times.tolist(), arrivals.functions.tolist()
        position, count = 0, len(times)
        while True:
            coming = times[position] if position < count else float("inf")
            due = heap[0][0] if heap else float("inf")
            if min(coming, due) > until:
                self.now = until
                return
            if coming <= due:
                self.now = coming
                arrive(functions[position])
                position += 1
                continue
            when, _, action, arguments = heapq.heappop(heap)
            standstill = standstill + 1 if when == last else 0
            if standstill > MAX_STANDSTILL:
                raise RuntimeError(f"virtual time stands still at {when} s, in {action}")
            self.now = last = when
            action(*arguments)
