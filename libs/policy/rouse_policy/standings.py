"""How far each of a node's functions is from its objective, kept as requests are answered.

What the queueing policy wants to know for every decision, brought up to date by one function at a time: deciding on a
thousand functions needs no look at each. The one value here that changes; it belongs to whoever makes the snapshots.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from rouse_policy import rrc


class Standings:
    """Records and required request counts by function. Whoever forgets functions bounds it."""

    def __init__(self, settings: rrc.Settings) -> None:
        self._settings = settings
        self._records: dict[str, rrc.Record] = {}
        self._required: dict[str, float] = {}
        self._behind: list[tuple[float, str]] = []

    def __len__(self) -> int:
        """Functions that had requests answered."""
        return len(self._records)

    @property
    def behind(self) -> Sequence[tuple[float, str]]:
        """(required request count, function) of those whose count is positive, ascending. Changes with answers."""
        return self._behind

    def required(self, function: str) -> float:
        """A function's required request count; 0 before the first answer."""
        return self._required.get(function, 0.0)

    def answered(self, function: str, in_time: bool) -> None:
        """Counts one more answer."""
        record = rrc.after(self._records.get(function, rrc.Record()), in_time, self._settings)
        self._take_out(function)
        self._records[function] = record
        self._required[function] = required = rrc.required(record, self._settings.percentile)
        if required > 0:
            insort(self._behind, (required, function))

    def forget(self, function: str) -> None:
        """Drops what is known of a function."""
        self._take_out(function)
        self._records.pop(function, None)
        self._required.pop(function, None)

    def _take_out(self, function: str) -> None:
        required = self._required.get(function, 0.0)
        if required > 0:
            del self._behind[bisect_left(self._behind, (required, function))]
