"""What was counted and is not written yet. In memory, bounded."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """Counts of one function within one second."""

    arrivals: int = 0
    completions: int = 0
    device_us: int = 0


@dataclass
class Taken:
    """Counts by second and function, and the latest arrival of functions, seconds since 1970."""

    seconds: dict[int, dict[str, Counts]] = field(default_factory=dict)
    last_arrivals: dict[str, float] = field(default_factory=dict)


class Pending:
    """Counts that wait to be written; `limit` pairs of second and function at most."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = Taken()
        self._entries = 0
        self._refused = 0

    def __len__(self) -> int:
        return self._entries

    def add(self, second: int, function: str, arrivals: int = 0, completions: int = 0, device_us: int = 0) -> bool:
        """Adds to a pair's counts; False, and counted as refused, where it would be one pair too many."""
        functions = self._taken.seconds.get(second)
        counts = functions.get(function) if functions is not None else None
        if counts is None:
            if self._entries >= self._limit:
                self._refused += 1
                return False
            counts = self._taken.seconds.setdefault(second, {})[function] = Counts()
            self._entries += 1
        counts.arrivals += arrivals
        counts.completions += completions
        counts.device_us += device_us
        return True

    def arrived(self, function: str, now: float) -> None:
        """Notes the latest arrival; call it only for what `add` accepted, which bounds it too."""
        known = self._taken.last_arrivals
        known[function] = max(now, known.get(function, 0.0))

    def take(self) -> Taken:
        """All of it; nothing is left."""
        taken, self._taken, self._entries = self._taken, Taken(), 0
        return taken

    def give_back(self, taken: Taken) -> None:
        """Puts back what could not be written, within the limit."""
        for second, functions in taken.seconds.items():
            for function, counts in functions.items():
                self.add(second, function, counts.arrivals, counts.completions, counts.device_us)
        kept = {function for functions in self._taken.seconds.values() for function in functions}
        for function, at in taken.last_arrivals.items():
            if function in kept:
                self.arrived(function, at)

    def drop_before(self, second: int) -> int:
        """Drops counts of earlier seconds, which nobody reads any more; how many there were."""
        old = [known for known in self._taken.seconds if known < second]
        dropped = sum(len(self._taken.seconds.pop(known)) for known in old)
        self._entries -= dropped
        if dropped:
            kept = {function for functions in self._taken.seconds.values() for function in functions}
            self._taken.last_arrivals = {f: at for f, at in self._taken.last_arrivals.items() if f in kept}
        return dropped

    def take_refused(self) -> int:
        """How many additions found no room since the last call."""
        refused, self._refused = self._refused, 0
        return refused

    def forget(self, function: str) -> None:
        """Drops what waits for a function."""
        for second, functions in list(self._taken.seconds.items()):
            if functions.pop(function, None) is not None:
                self._entries -= 1
            if not functions:
                del self._taken.seconds[second]
        self._taken.last_arrivals.pop(function, None)
