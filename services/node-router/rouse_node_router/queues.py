"""The node's waiting queues: one a version, bounded, and the order in which their requests go on.

A version with requests asks for devices. Who goes is decided when a device is there: one request, or a batch.
A request is a Ticket. It is QUEUED, then EXECUTING; where nothing has run it is APART for a moment, and comes back;
one that wants a certain instance, or that tapes alone are to answer, is APART from the start, and asks for itself.
From any of these it leaves exactly once, with one Outcome. Nothing here waits or does I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rouse_common.clock import Clock
from rouse_common.errors import ResourceExhausted
from rouse_common.statemachine import IllegalTransition
from rouse_contracts import node
from rouse_contracts.wire import Buffer
from rouse_node_router.answers import displaced, refused
from rouse_node_router.tickets import MOVES, Outcome, Phase, Ticket
from rouse_node_router.versions import Ask, Row, VersionQueue
from rouse_policy import batching, fairness, golden, queueing
from rouse_policy.fairness import Tags
from rouse_policy.queueing import Action, Head, Load, Snapshot, Verdict
from rouse_policy.standings import Standings

DEFAULT_CAPACITY = 256
# More versions than a node can have instances of; beyond, those that idle longest are forgotten.
MAX_VERSIONS = 10_000
# Requests that are looked at for a batch, beside as many as it may have rows.
CANDIDATES = 64


class Queues:
    """All queues of the node. Belongs to one event loop.

    Args:
        max_batch_bytes: inputs of a batch at most, together.
        shed: told why a request is refused.
        decided: told every decision as a line for replaying; None: nobody wants them.
    """

    def __init__(
        self,
        settings: queueing.Settings,
        clock: Clock,
        max_batch_bytes: int = 64 << 20,
        shed: Callable[[str], object] = lambda reason: None,
        decided: Callable[[str], object] | None = None,
    ) -> None:
        self._settings, self._clock, self._max_batch_bytes = settings, clock, max_batch_bytes
        self._shed, self._decided = shed, decided
        self._state = queueing.State()
        self._versions: dict[str, VersionQueue] = {}
        # Those that had no request for a while: what they counted and learnt is kept.
        self._past: dict[str, VersionQueue] = {}
        # Versions that may ask for one more device. Unless the limit over all versions is reached this is
        # empty between two calls: what can go on does so at once.
        self._ready: dict[str, VersionQueue] = {}
        self._asking = 0
        self._dispatching = False
        # What tenants have had of the node's devices, in seconds.
        self._tags = Tags()
        self._standings = Standings(settings.objective)
        self._ask: Callable[[VersionQueue, Ticket], Ask | None] | None = None
        # Asking for the running loop is a system call.
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def asking(self) -> int:
        """Calls for a device that are under way."""
        return self._asking

    def asks_with(self, ask: Callable[[VersionQueue, Ticket], Ask | None]) -> None:
        """Sets what asks for a device: it returns at once, and calls `granted` or `no_device` later. Where a device is
        there already it calls `granted` first, and returns None."""
        self._ask = ask

    def waiting(self, version_id: str) -> VersionQueue | None:
        """The queue of a version; None where nothing waits in it."""
        queue = self._versions.get(version_id)
        return queue if queue is not None and len(queue.lanes) else None

    def enter(
        self, request: node.InferRequest, inputs: Buffer, deadline: float, instance_id: str = "", tape_key: str = ""
    ) -> Ticket:
        """Queues a request; one for a certain instance, or for tapes alone, is not queued, but counted.

        Raises ResourceExhausted QUEUE_FULL | CANNOT_MEET_DEADLINE with a time to retry after.
        """
        now = self._clock.monotonic()
        queue = self._versions.get(request.version_id)
        if queue is None:
            queue = self._add(request.function, request.version_id, now)
        queue.used_at = now
        self._configure(queue, request)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        ticket = Ticket(queue, request, inputs, now, deadline, self._loop.create_future())
        ticket.level = fairness.level(request.options.priority) if request.HasField("options") else fairness.MIDDLE
        if request.rows and queue.settings.max_rows > 1 and not request.options.HasField("sequence"):
            ticket.batchable, ticket.rows = True, request.rows
        self._admit(ticket, request.queue_capacity or DEFAULT_CAPACITY, now)
        ticket.instance_id, ticket.tape_key = instance_id, tape_key
        if ticket.asks_itself:
            ticket.phase = Phase.APART
            queue.apart += 1
        else:
            self._join(ticket)
        return ticket

    def granted(self, queue: VersionQueue, ask: Ask | None, until: float) -> tuple[list[Ticket], str]:
        """A device is there, until the given time: the requests that are executed on it now, and why these. Where
        nobody needs it any more there are none, and it is to be given back."""
        if ask is not None:
            self._end_ask(queue, ask)
        members, reason = self._candidates(queue, until), "executed one by one"
        if queue.settings.max_rows > 1:
            snapshot = batching.Snapshot([ticket.waiting for ticket in members], granted=True)
            now = self._clock.monotonic()
            decision, queue.profile = batching.decide(snapshot, queue.profile, queue.settings, now)
            members, reason = [members[position] for position in decision.members], decision.reason
        for ticket in members:
            queue.lanes.charge(ticket)
            self._move(ticket, Phase.EXECUTING)
        self._take_back_asks(queue)
        self._dispatch()
        return members, reason

    def no_device(
        self, queue: VersionQueue, ask: Ask, told: Callable[[Ticket], Exception | None], *, all_: bool
    ) -> None:
        """The call for a device failed. The next request, or all, are told; where `told` is None they wait on."""
        self._end_ask(queue, ask)
        for ticket in list(queue.lanes) if all_ else self._candidates(queue)[:1]:
            error = told(ticket)
            if error is not None:
                self.tell(ticket, error)
        self._dispatch()

    def tell(self, ticket: Ticket, error: Exception) -> None:
        """Takes a request out of its queue with an error, which its task acts on."""
        self._move(ticket, Phase.APART)
        if not ticket.turn.done():
            ticket.turn.set_exception(error)
            # Seen, whether or not its owner is still there to read it.
            ticket.turn.exception()

    def holds(self, ticket: Ticket) -> None:
        """A request that asked for itself holds a device."""
        self._move(ticket, Phase.EXECUTING)

    def unexecuted(self, ticket: Ticket) -> None:
        """Nothing has run of a request that held a device, or was told: it may come back."""
        if ticket.phase is Phase.EXECUTING:
            self._move(ticket, Phase.APART)
            self._dispatch()

    def again(self, ticket: Ticket) -> None:
        """The request waits for another device, in its old place."""
        if ticket.asks_itself:
            return
        ticket.turn = ticket.turn.get_loop().create_future()
        self._move(ticket, Phase.QUEUED)
        self._join(ticket)

    def executed(self, queue: VersionQueue, requests: int, rows: int, seconds: float | None) -> None:
        """An execution has ended; `seconds` of the device's work where it succeeded."""
        now = self._clock.monotonic()
        if seconds is not None:
            queue.profile = batching.learn(queue.profile, rows, seconds, queue.settings)
        others = bool(len(queue.lanes)) or queue.executing > requests
        queue.throughput = queueing.learn(queue.throughput, requests, others, self._settings, now)

    def charge(self, ticket: Ticket, seconds: float) -> None:
        """The ticket's tenant had so much of a device."""
        begin = self._tags.of(ticket.tenant)
        self._tags.served(begin)
        self._tags.keep(ticket.tenant, fairness.after(begin, seconds, ticket.weight))

    def leave(self, ticket: Ticket, outcome: Outcome) -> None:
        """The request has ended. Raises IllegalTransition the second time."""
        queue = ticket.queue
        self._move(ticket, Phase.LEFT)
        queue.ended[outcome] += 1
        queue.used_at = self._clock.monotonic()
        if outcome in (Outcome.COMPLETED, Outcome.EXPIRED):
            latest = ticket.arrived + queue.settings.objective_s if queue.settings.objective_s else ticket.deadline
            in_time = outcome is Outcome.COMPLETED and queue.used_at <= latest
            self._standings.answered(queue.version_id, in_time)
        self._take_back_asks(queue)
        self._dispatch()

    def rows(self) -> list[Row]:
        """Every version that is known, in no order. May be called from another thread."""
        return [queue.row() for queue in list(self._versions.values())]

    def known(self) -> list[VersionQueue]:
        """Every version with its statistics, also those without requests for a while."""
        return [*self._versions.values(), *self._past.values()]

    def forget_idle(self, idle_s: float) -> int:
        """Drops the state of versions that had no request for `idle_s` seconds; how many."""
        before = self._clock.monotonic() - idle_s
        old = [queue for queue in self._versions.values() if queue.idle and queue.used_at <= before]
        for queue in old:
            self._forget(queue)
        return len(old)

    # ---- Coming in -----------------------------------------------------------------------------

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
            self._forget(min(idle, key=lambda queue: queue.used_at))
        queue = self._past.pop(version_id, None) or VersionQueue(function, version_id, now)
        self._versions[version_id] = queue
        return queue

    def _forget(self, queue: VersionQueue) -> None:
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        del self._versions[queue.version_id]
        self._standings.forget(queue.version_id)
        self._past[queue.version_id] = queue
        while len(self._past) > MAX_VERSIONS:
            del self._past[next(iter(self._past))]

    def _configure(self, queue: VersionQueue, request: node.InferRequest) -> None:
        """Takes over what the version says of itself; the same in all its requests."""
        batch, objective_s = request.batching, request.objective_ms / 1000
        max_rows, delay_s = max(batch.max_batch_size, 1), batch.max_delay_us / 1e6
        known = queue.settings
        if request.decoupled:
            max_rows, delay_s = 1, 0.0
        if (known.max_rows, known.max_delay_s, known.objective_s) != (max_rows, delay_s, objective_s):
            queue.settings = batching.Settings(max_rows, delay_s, self._max_batch_bytes, objective_s)

    def _admit(self, ticket: Ticket, capacity: int, now: float) -> None:
        """Lets a request in, in another one's place where it must be. Raises ResourceExhausted."""
        queue, request = ticket.queue, ticket.request
        waiting = len(queue.lanes) + queue.apart
        if not waiting:
            # Nothing is before it, and no queue is shorter than one.
            return
        holdings = queue.lanes.holdings()
        load = Load(
            waiting=waiting,
            executing=queue.executing,
            capacity=capacity,
            ahead=fairness.ahead(holdings, ticket.tenant, ticket.weight) if holdings else 0.0,
            remaining_s=ticket.deadline - now,
            execution_s=batching.typical(queue.profile, ticket.rows),
        )
        admission = queueing.admit(load, queue.throughput, self._settings)
        if admission.admitted:
            return
        if admission.verdict is Verdict.FULL and len(holdings) + (ticket.tenant not in holdings) > 1:
            gives_way = fairness.displace(holdings, ticket.tenant, ticket.weight, capacity)
            if gives_way.tenant is not None:
                victim = queue.lanes.last(gives_way.tenant)
                self._shed("DISPLACED")
                self.tell(victim, displaced(victim.request, gives_way.reason, admission))
                return
        queue.ended[Outcome.REFUSED] += 1
        queue.statistics.failed(0.0, cancelled=False)
        error = refused(request, admission)
        self._shed(error.reason)
        raise error

    def _join(self, ticket: Ticket) -> None:
        queue = ticket.queue
        queue.latest = max(queue.latest, ticket.deadline) if len(queue.lanes) else ticket.deadline
        queue.lanes.add(ticket)
        self._note_room(queue)
        self._dispatch()

    # ---- Going on ------------------------------------------------------------------------------

    def _move(self, ticket: Ticket, to: Phase) -> None:
        queue = ticket.queue
        if to not in MOVES[ticket.phase]:
            raise IllegalTransition(f"request of version {queue.version_id}: {ticket.phase.name} to {to.name}")
        if ticket.phase is Phase.QUEUED:
            queue.lanes.remove(ticket)
        elif ticket.phase is Phase.APART:
            queue.apart -= 1
        else:
            queue.executing -= 1
        if to is Phase.APART:
            queue.apart += 1
        elif to is Phase.EXECUTING:
            queue.executing += 1
        ticket.phase = to
        self._note_room(queue)

    def _end_ask(self, queue: VersionQueue, ask: Ask) -> None:
        """An ask is over; one that was taken back is so already."""
        if ask in queue.asks:
            del queue.asks[ask]
            self._asking -= 1
            self._note_room(queue)

    def _take_back_asks(self, queue: VersionQueue) -> None:
        """Ends the asks that nobody needs any more, the newest first."""
        while len(queue.asks) > self._wanted(queue):
            ask = next(reversed(queue.asks))
            self._end_ask(queue, ask)
            ask.cancel()

    def _wanted(self, queue: VersionQueue) -> int:
        """Asks that the version should have under way at most."""
        return min(queue.lanes.groups(queue.settings.max_rows), self._settings.max_acquiring_per_version)

    def _note_room(self, queue: VersionQueue) -> None:
        if len(queue.asks) < self._wanted(queue):
            self._ready[queue.version_id] = queue
        else:
            self._ready.pop(queue.version_id, None)

    def _candidates(self, queue: VersionQueue, until: float = float("inf")) -> list[Ticket]:
        """The version's next requests, as far as they could be needed, but those whose deadline has passed or is
        behind `until`, and those that were cancelled just now."""
        found: list[Ticket] = []
        limit = queue.settings.max_rows + CANDIDATES if queue.settings.max_rows > 1 else 1
        now = self._clock.monotonic()
        for ticket in queue.lanes:
            if ticket.turn.done() or not now < ticket.deadline <= until:
                continue
            found.append(ticket)
            if len(found) >= limit:
                break
        return found

    def _due(self, queue: VersionQueue, now: float) -> bool:
        """Whether the version's requests need wait no longer for company; else it is looked at again in time."""
        if queue.settings.max_delay_s <= 0 or queue.lanes.full_groups(queue.settings.max_rows) > len(queue.asks):
            return True
        if queue.asks:
            # What is asked for already takes them along.
            return False
        candidates = [ticket.waiting for ticket in self._candidates(queue)]
        decision, queue.profile = batching.decide(
            batching.Snapshot(candidates, granted=False), queue.profile, queue.settings, now
        )
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        if decision.action is batching.Action.LEAVE:
            return True
        if decision.wake_at is not None:
            queue.timer = asyncio.get_running_loop().call_later(decision.wake_at - now, self._look_again, queue)
        return False

    def _look_again(self, queue: VersionQueue) -> None:
        queue.timer = None
        self._note_room(queue)
        self._dispatch()

    def _dispatch(self) -> None:
        """Lets versions ask for devices until none may. Where asking finds one at once it comes back here, and leaves
        the rest to who is at it already."""
        if self._ask is None or self._dispatching:
            return
        self._dispatching = True
        try:
            self._ask_for_all(self._ask)
        finally:
            self._dispatching = False

    def _ask_for_all(self, ask_for: Callable[[VersionQueue, Ticket], Ask | None]) -> None:
        now = self._clock.monotonic()
        while self._ready and self._asking < self._settings.max_acquiring:
            heads: dict[str, Ticket] = {}
            for queue in list(self._ready.values()):
                head = next(iter(self._candidates(queue)), None)
                if head is None or not self._due(queue, now):
                    del self._ready[queue.version_id]
                else:
                    heads[queue.version_id] = head
            decision = self._decide([self._head(version, ticket) for version, ticket in heads.items()], now)
            if decision.action is Action.WAIT:
                return
            queue = self._ready[decision.version_id]
            ask = ask_for(queue, heads[decision.version_id])
            if ask is not None:
                queue.asks[ask] = None
                self._asking += 1
                self._note_room(queue)

    def _head(self, version_id: str, ticket: Ticket) -> Head:
        return Head(
            version_id,
            ticket.deadline,
            ticket.arrived,
            self._tags.of(ticket.tenant),
            self._standings.required(version_id),
        )

    def _decide(self, heads: list[Head], now: float) -> queueing.Decision:
        snapshot = Snapshot(tuple(heads), self._asking, self._standings.behind, len(self._standings))
        before = self._state
        decision, self._state = queueing.decide(snapshot, before, self._settings, now)
        if self._decided is not None:
            self._decided(golden.line("queueing", snapshot, before, self._settings, now, decision))
        return decision
