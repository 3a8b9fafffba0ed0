"""What the scaler remembers of each function between two looks. In memory: a restart begins anew."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from rouse_policy import scaling


@dataclass(eq=False)
class Entry:
    """One function, or one of its versions that has traffic beside the active one.

    Attributes:
        function: its name.
        version_id: empty for the active version, which also stands for the function.
        number: of the version last looked at.
        state: of the policy.
        seen, decision: what was last looked at and decided.
        woken_at, slept_at: when it was last woken and put to sleep, seconds since 1970; None where it was not.
        changed_at: when instances were last started or stopped from here, monotonic seconds. What was read
            before then is out of date.
        acting: whether a decision is being carried out.
        trouble: why the latest action failed; empty where it did not.
        lock: held while instances are looked at and changed, so that a wake-up and a decision do not cross.
    """

    function: str
    version_id: str = ""
    number: int = 0
    state: scaling.State = field(default_factory=scaling.State)
    seen: scaling.Snapshot | None = None
    decision: scaling.Decision | None = None
    woken_at: float | None = None
    slept_at: float | None = None
    changed_at: float = 0.0
    acting: bool = False
    trouble: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def counted(self) -> int:
        """Instances of the active version that are there or on their way."""
        seen = self.seen
        if seen is None:
            return 0
        return sum(x.version_id == seen.version_id and x.state in scaling.COUNTED for x in seen.instances)

    def started(self, instance_id: str, now: float) -> None:
        """An instance was started at `now` (monotonic): its end will be noticed even if it comes at once."""
        self.state = replace(self.state, seen=self.state.seen | {instance_id}, failed=False)
        self.changed_at = now


class Registry:
    """Entries of the functions that there are, bounded by them."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}

    def entry(self, function: str, version_id: str = "") -> Entry:
        """That of a function, or of a version beside its active one; a function's entries share their lock."""
        entry = self._entries.get((function, version_id))
        if entry is None:
            entry = Entry(function, version_id)
            if version_id:
                entry.lock = self.entry(function).lock
            self._entries[function, version_id] = entry
        return entry

    def of_function(self, function: str) -> list[Entry]:
        """The entries that there are of a function."""
        return [entry for entry in self._entries.values() if entry.function == function]

    def entries(self) -> list[Entry]:
        """All of them, in the order of names and versions. May be called from another thread."""
        # Copied in one step: the event loop may add one meanwhile.
        entries = list(self._entries.values())
        return sorted(entries, key=lambda entry: (entry.function, entry.number, entry.version_id))

    def keep(self, wanted: Collection[tuple[str, str]]) -> None:
        """Drops the entries of functions and versions that are not wanted any more, unless something is being
        done about them."""
        for key, entry in list(self._entries.items()):
            if key not in wanted and not entry.acting and not entry.lock.locked():
                del self._entries[key]
