"""What is known of one version: its waiting requests, what was learnt of it, and what became of its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rouse_node_router.lanes import Lanes
from rouse_node_router.statistics import Statistics
from rouse_node_router.tickets import Outcome
from rouse_policy import batching
from rouse_policy.queueing import Throughput


class Ask(Protocol):
    """A call for a device that is under way."""

    def cancel(self) -> object: ...


@dataclass(frozen=True)
class Row:
    """A version's queue as it is now, and how its requests ended since it has been here."""

    function: str
    version_id: str
    queued: int
    executing: int
    ended: Mapping[Outcome, int]


@dataclass(eq=False)
class VersionQueue:
    """State of one version. Times are monotonic seconds.

    Attributes:
        asks: calls for a device that nobody was given yet.
        latest: no deadline of what waits is behind it.
        apart: requests that are in no order with others, and not executed either.
        settings: how requests are batched; profile: how long executions take.
    """

    function: str
    version_id: str
    used_at: float
    lanes: Lanes = field(default_factory=Lanes)
    asks: dict[Ask, None] = field(default_factory=dict)
    latest: float = 0.0
    apart: int = 0
    executing: int = 0
    settings: batching.Settings = field(default_factory=batching.Settings)
    profile: batching.State = field(default_factory=batching.State)
    throughput: Throughput = field(default_factory=Throughput)
    statistics: Statistics = field(default_factory=Statistics)
    ended: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        return not (len(self.lanes) or self.apart or self.executing)

    def row(self) -> Row:
        return Row(self.function, self.version_id, len(self.lanes) + self.apart, self.executing, dict(self.ended))
