"""The node's waiting queues: one a version, bounded, and the order in which their requests go on.

A request is a Ticket. It is QUEUED, then ACQUIRING a device, then EXECUTING; from any of these it leaves
exactly once, with one Outcome. Nothing here waits or does I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from rouse_common.clock import Clock
from rouse_common.errors import DeadlineExceeded, ResourceExhausted
from rouse_common.statemachine import IllegalTransition
from rouse_policy import queueing
from rouse_policy.queueing import Action, Head, Load, Snapshot, Throughput

DEFAULT_CAPACITY = 256
# More versions than a node can have instances of; beyond, those that idle longest are forgotten.
MAX_VERSIONS = 10_000


class Phase(Enum):
    """Where a request is."""

    QUEUED = "QUEUED"
    ACQUIRING = "ACQUIRING"
    EXECUTING = "EXECUTING"
    LEFT = "LEFT"


class Outcome(Enum):
    """How a request ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REFUSED = "refused"


MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.ACQUIRING, Phase.LEFT}),
    Phase.ACQUIRING: frozenset({Phase.EXECUTING, Phase.LEFT}),
    Phase.EXECUTING: frozenset({Phase.ACQUIRING, Phase.LEFT}),
    Phase.LEFT: frozenset(),
}


@dataclass(eq=False, slots=True)
class Ticket:
    """One request in the queues; `turn` is done when it may ask for a device. Times are monotonic seconds."""

    queue: VersionQueue
    arrived: float
    deadline: float
    turn: asyncio.Future[None]
    phase: Phase = Phase.QUEUED


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
    """State of one version."""

    function: str
    version_id: str
    used_at: float
    waiting: dict[Ticket, None] = field(default_factory=dict)
    acquiring: int = 0
    executing: int = 0
    throughput: Throughput = field(default_factory=Throughput)
    ended: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.acquiring or self.executing)

    def row(self) -> Row:
        queued = len(self.waiting) + self.acquiring
        return Row(self.function, self.version_id, queued, self.executing, dict(self.ended))


class Queues:
    """All queues of the node. Belongs to one event loop."""

    def __init__(self, settings: queueing.Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._state = queueing.State()
        self._versions: dict[str, VersionQueue] = {}
        # Versions with a request queued and room for it to go on. Unless the limit over all versions is
        # reached this is empty between two calls: what can go on does so at once.
        self._ready: dict[str, VersionQueue] = {}
        self._acquiring = 0

    @property
    def acquiring(self) -> int:
        """Requests that wait for a device."""
        return self._acquiring

    def enter(self, function: str, version_id: str, capacity: int, deadline: float) -> Ticket:
        """Queues a request. Raises ResourceExhausted QUEUE_FULL with a time to retry after."""
        now = self._clock.monotonic()
        queue = self._versions.get(version_id)
        if queue is None:
            queue = self._add(function, version_id, now)
        queue.used_at = now
        load = Load(len(queue.waiting), queue.acquiring, queue.executing, capacity or DEFAULT_CAPACITY)
        admission = queueing.admit(load, queue.throughput, self._settings)
        if not admission.admitted:
            queue.ended[Outcome.REFUSED] += 1
            raise ResourceExhausted(
                "QUEUE_FULL",
                f"the queue of function '{function}' on this node is full: {admission.reason}; try again later",
                retry_after_s=admission.retry_after_s,
                function=function,
                version=version_id,
            )
        ticket = Ticket(queue, now, deadline, asyncio.get_running_loop().create_future())
        queue.waiting[ticket] = None
        self._note_room(queue)
        self._dispatch()
        return ticket

    def granted(self, ticket: Ticket) -> None:
        """The request holds a device now."""
        self._move(ticket, Phase.EXECUTING)
        self._dispatch()

    def again(self, ticket: Ticket) -> None:
        """The request lost its device before anything ran, and asks for another one at once."""
        self._move(ticket, Phase.ACQUIRING)

    def leave(self, ticket: Ticket, outcome: Outcome) -> None:
        """The request has ended. Raises IllegalTransition the second time."""
        queue, now = ticket.queue, self._clock.monotonic()
        served = ticket.phase is Phase.EXECUTING
        self._move(ticket, Phase.LEFT)
        queue.ended[outcome] += 1
        queue.used_at = now
        if served:
            queue.throughput = queueing.learn(queue.throughput, not queue.idle, self._settings, now)
        self._dispatch()

    def rows(self) -> list[Row]:
        """Every version that is known, in no order. May be called from another thread."""
        return [queue.row() for queue in list(self._versions.values())]

    def forget_idle(self, idle_s: float) -> int:
        """Drops the state of versions that had no request for `idle_s` seconds; how many."""
        before = self._clock.monotonic() - idle_s
        old = [queue for queue in self._versions.values() if queue.idle and queue.used_at <= before]
        for queue in old:
            del self._versions[queue.version_id]
        return len(old)

    def _add(self, function: str, version_id: str, now: float) -> VersionQueue:
        if len(self._versions) >= MAX_VERSIONS:
            idle = [queue for queue in self._versions.values() if queue.idle]
            if not idle:
                raise ResourceExhausted(
                    "QUEUE_FULL",
                    f"requests for {MAX_VERSIONS} versions are on this node already; try again later",
                    retry_after_s=self._settings.unknown_retry_s,
                    function=function,
                )
            del self._versions[min(idle, key=lambda queue: queue.used_at).version_id]
        queue = self._versions[version_id] = VersionQueue(function, version_id, now)
        return queue

    def _move(self, ticket: Ticket, to: Phase) -> None:
        queue = ticket.queue
        if to not in MOVES[ticket.phase]:
            raise IllegalTransition(f"request of version {queue.version_id}: {ticket.phase.name} to {to.name}")
        if ticket.phase is Phase.QUEUED:
            # One that is cancelled may have been passed over by _dispatch already.
            queue.waiting.pop(ticket, None)
        elif ticket.phase is Phase.ACQUIRING:
            queue.acquiring -= 1
            self._acquiring -= 1
        else:
            queue.executing -= 1
        if to is Phase.ACQUIRING:
            queue.acquiring += 1
            self._acquiring += 1
        elif to is Phase.EXECUTING:
            queue.executing += 1
        ticket.phase = to
        self._note_room(queue)

    def _note_room(self, queue: VersionQueue) -> None:
        if queue.waiting and queue.acquiring < self._settings.max_acquiring_per_version:
            self._ready[queue.version_id] = queue
        else:
            self._ready.pop(queue.version_id, None)

    def _dispatch(self) -> None:
        """Lets requests go on until none may."""
        while self._ready:
            heads = []
            for queue in self._ready.values():
                first = next(iter(queue.waiting))
                heads.append(Head(queue.version_id, first.deadline, first.arrived))
            snapshot = Snapshot(tuple(heads), self._acquiring)
            decision, self._state = queueing.decide(snapshot, self._state, self._settings, self._clock.monotonic())
            if decision.action is Action.WAIT:
                return
            queue = self._ready[decision.version_id]
            ticket = next(iter(queue.waiting))
            if ticket.turn.done() or decision.action is Action.EXPIRE:
                del queue.waiting[ticket]
                self._note_room(queue)
                if not ticket.turn.done():
                    ticket.turn.set_exception(expired(queue.function, queue.version_id))
                    # Seen, whether or not its owner is still there to read it.
                    ticket.turn.exception()
                continue
            self._move(ticket, Phase.ACQUIRING)
            ticket.turn.set_result(None)


def expired(function: str, version_id: str) -> DeadlineExceeded:
    """The answer to a request whose deadline passed in the queue."""
    return DeadlineExceeded(
        "DEADLINE_EXCEEDED",
        f"the deadline passed while the request waited in the queue of function '{function}'; it was not executed",
        function=function,
        version=version_id,
    )
