"""Who computes where, what is swapped in, and what leaves for it: one decision over a node's devices.

The order of preference is that of Torpor's Algorithm 1 (section 5.3), for each waiting request in the
order of the snapshot, which is that of arrival within a tenant and by shares between tenants (`fairness`):

1. a device that holds the model and is idle, best one that an executor is attached to already;
2. an idle device with room, then an idle one where enough can be evicted (see `eviction`);
3. where another device holds the model, or loads it: wait for that one;
4. else a busy device, so that the load overlaps what executes there.

Computing and memory are separate: a device computes one request at a time, but loads while it computes.
A device keeps room for the largest working memory among its models, so each resident can always run.

**Patience.** Requests of one model are served in their order. Between models, a request whose
model is resident may run before an older one that needs memory (coalescing), until the older one is
overdue: it has waited `patience_s`, or a quarter of the time that it has at all. The first overdue
request then holds a device, one where it fits beside pinned weights: nothing whose turn is later starts or
loads there, so that what executes there ends, everything else may be evicted, and the request's model is
loaded next. So the first request waits for its patience, one execution and one load at most; every request
becomes the first in the end.

**Pinned models** are brought to a device before any request is served, evicting whatever rests there, and
one copy of each never leaves. All this only as long as the largest other model still fits on some device
beside them: one that would leave it no room is an ordinary model until it does.
"""

from __future__ import annotations

from collections.abc import Sequence

from rouse_policy import eviction
from rouse_policy.pool import (
    DISK as DISK,
)
from rouse_policy.pool import (
    HOST as HOST,
)
from rouse_policy.pool import (
    Decision as Decision,
)
from rouse_policy.pool import (
    Device as Device,
)
from rouse_policy.pool import (
    Executor as Executor,
)
from rouse_policy.pool import (
    Grant as Grant,
)
from rouse_policy.pool import (
    Hold as Hold,
)
from rouse_policy.pool import (
    Load as Load,
)
from rouse_policy.pool import (
    Model as Model,
)
from rouse_policy.pool import (
    Phase as Phase,
)
from rouse_policy.pool import (
    Resident as Resident,
)
from rouse_policy.pool import (
    Settings as Settings,
)
from rouse_policy.pool import (
    Snapshot as Snapshot,
)
from rouse_policy.pool import (
    State as State,
)
from rouse_policy.pool import (
    Waiter as Waiter,
)

# A request with a short deadline becomes overdue after this part of its time.
PATIENCE_SHARE = 0.25
# The ticket of what is brought without a request, and its turn.
BEFORE_ALL = -1


def patience_s(waiter: Waiter, settings: Settings) -> float:
    """How long a request waits for memory before it is overdue."""
    return min(settings.patience_s, PATIENCE_SHARE * max(0.0, waiter.deadline - waiter.arrived))


def fits_at_all(size_bytes: int, working_bytes: int, devices: tuple[Device, ...]) -> bool:
    """Whether some device could hold and run such a model if it were alone there."""
    return size_bytes == 0 or any(size_bytes + working_bytes <= d.capacity_bytes for d in devices)


def fits_beside(model: Model, pinned: Sequence[Model], capacity_bytes: int) -> bool:
    """Whether a device could hold a model and some that never leave it, and run each of them."""
    every = [model, *pinned]
    return sum(m.size_bytes for m in every) + max(m.working_bytes for m in every) <= capacity_bytes


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Decides for every waiting request in the order of the snapshot."""
    board = _Board(snapshot, state, settings, now)
    for version in snapshot.bring:
        if version in snapshot.models:
            board.bring(snapshot.models[version])
    for waiter in snapshot.waiters:
        if waiter.deadline > now and waiter.version in snapshot.models:
            board.serve(waiter)
    wakes = [at for at in board.wakes if at > now]
    held = ", ".join(f"{h.device} for request {h.ticket}" for h in board.holds)
    reason = f"{len(snapshot.waiters)} wait, {len(board.grants)} start, {len(board.loads)} loads begin"
    decision = Decision(
        tuple(board.grants), tuple(board.loads), min(wakes, default=None), reason + (f"; held: {held}" if held else "")
    )
    return decision, State(tuple(board.holds))


class _Board:
    """The pool while one decision is being made: the snapshot and what was decided so far."""

    def __init__(self, snapshot: Snapshot, state: State, settings: Settings, now: float) -> None:
        self.settings, self.now, self.models = settings, now, snapshot.models
        self.devices = {d.name: d for d in snapshot.devices}
        self.busy = {d.name for d in snapshot.devices if d.busy}
        self.on: dict[str, dict[str, Resident]] = {d.name: {} for d in snapshot.devices}
        for resident in snapshot.residents:
            self.on[resident.device][resident.version] = resident
        self.free: dict[str, list[Executor]] = {}
        for executor in snapshot.executors:
            self.free.setdefault(executor.version, []).append(executor)
        # A version's waiters in their order; whoever is served is taken out.
        self.tickets: dict[str, list[int]] = {}
        for waiter in snapshot.waiters:
            self.tickets.setdefault(waiter.version, []).append(waiter.ticket)
        self.turns = {w.ticket: turn for turn, w in enumerate(snapshot.waiters)}
        waiting = {w.ticket for w in snapshot.waiters if w.deadline > now}
        self.holds = [h for h in state.holds if h.ticket in waiting and h.device in self.devices]
        self.covered: set[tuple[str, str]] = set()
        self.largest = snapshot.largest
        self.pins: dict[str, str] = {}
        for resident in sorted(snapshot.residents, key=lambda r: (r.loaded_at, r.version, r.device)):
            if resident.version in self.models and resident.phase not in (Phase.LEAVING, Phase.STUCK):
                self._pin(self.models[resident.version], resident.device)
        self.grants: list[Grant] = []
        self.loads: list[Load] = []
        self.wakes: list[float] = []

    def serve(self, waiter: Waiter) -> None:
        """Grants, loads, or leaves the request waiting."""
        model, executors = self.models[waiter.version], self.free.get(waiter.version, [])
        if waiter.instance:
            executors = [executor for executor in executors if executor.instance == waiter.instance]
        if not executors:
            # It waits for an instance of its own, so a device held for it would stand idle.
            self._drop_hold(waiter)
        elif model.size_bytes == 0:
            self._grant(waiter, HOST, executors[0], "no weights: needs no device")
        elif not self._grant_where_resident(waiter, executors) and not self._covered_by_a_load(waiter):
            self._load_somewhere(waiter, model)

    # ---- pinning ----

    def _pin(self, model: Model, name: str) -> None:
        """Has the copy on a device stay for good, where the model is pinned and leaves room for the others."""
        if model.pinned and model.version not in self.pins and self._leaves_room(model, name):
            self.pins[model.version] = name

    def _leaves_room(self, model: Model, name: str) -> bool:
        """Whether the largest model that is not pinned still fits on some device."""
        return self.largest is None or any(
            self._fits_beside_pinned(other, self.largest, (model,) if other == name else ()) for other in self.devices
        )

    def bring(self, model: Model) -> None:
        """Loads a pinned model, as a request that came before all others would."""
        if any(model.version in residents for residents in self.on.values()):
            return
        pin = Waiter(BEFORE_ALL, model.version, self.now, float("inf"))
        claim = eviction.Claim(BEFORE_ALL, model.size_bytes, model.working_bytes, overdue=True)
        plans = []
        for name in self.devices:
            if not self._leaves_room(model, name):
                continue
            plan = self._plan(name, pin, model, claim, has_copy=False)
            if plan is not None:
                plans.append((name in self.busy, sum(self._size(v.version) for v in plan.victims), name, plan))
        if plans:
            _, _, name, chosen = min(plans, key=lambda p: p[:3])
            self._start_load(pin, name, chosen, "it is pinned, ")
            self._pin(model, name)

    # ---- granting ----

    def _grant_where_resident(self, waiter: Waiter, executors: list[Executor]) -> bool:
        places = [
            name
            for name, residents in self.on.items()
            if name not in self.busy
            and self._may_use(name, waiter)
            and (resident := residents.get(waiter.version)) is not None
            and resident.phase is Phase.RESTING
        ]
        if not places:
            return False
        best = min(
            ((name, executor) for name in places for executor in executors),
            key=lambda pair: (pair[1].device != pair[0], pair[1].device is not None, pair[0], pair[1].instance),
        )
        attached = "attached" if best[1].device == best[0] else "to be attached"
        self._grant(waiter, *best, f"resident on idle {best[0]}, {attached}")
        return True

    def _grant(self, waiter: Waiter, device: str, executor: Executor, reason: str) -> None:
        self.grants.append(Grant(waiter.ticket, device, executor.instance, reason))
        self.free[waiter.version].remove(executor)
        self.tickets[waiter.version].remove(waiter.ticket)
        self._drop_hold(waiter)
        if device != HOST:
            self.busy.add(device)
            resident = self.on[device][waiter.version]
            self.on[device][waiter.version] = Resident(
                resident.version, device, Phase.EXECUTING, resident.loaded_at, self.now
            )

    def _covered_by_a_load(self, waiter: Waiter) -> bool:
        """Whether a copy is on its way that no earlier request waits for."""
        for name, residents in self.on.items():
            resident = residents.get(waiter.version)
            if resident is not None and resident.phase is Phase.LOADING and (name, waiter.version) not in self.covered:
                self.covered.add((name, waiter.version))
                self._drop_hold(waiter)
                return True
        return False

    # ---- loading ----

    def _load_somewhere(self, waiter: Waiter, model: Model) -> None:
        waited = self.now - waiter.arrived
        overdue = waited >= patience_s(waiter, self.settings)
        present = [
            n for n, r in self.on.items() if waiter.version in r and r[waiter.version].phase is not Phase.LEAVING
        ]
        # A stuck copy serves nobody.
        has_copy = any(self.on[n][waiter.version].phase is not Phase.STUCK for n in present)
        replica_due = waited >= self.settings.replica_after_s
        claim = eviction.Claim(
            self._turn(waiter.ticket),
            model.size_bytes,
            model.working_bytes,
            overdue,
            may_evict_last=not has_copy or replica_due,
        )  # fmt: skip
        if not overdue:
            self.wakes.append(waiter.arrived + patience_s(waiter, self.settings))
        if has_copy and not replica_due:
            self.wakes.append(waiter.arrived + self.settings.replica_after_s)
        plans = []
        for name in self.devices:
            plan = self._plan(name, waiter, model, claim, has_copy)
            if plan is not None:
                plans.append((name in self.busy, sum(self._size(v.version) for v in plan.victims), name, plan))
        if plans:
            _, _, name, chosen = min(plans, key=lambda p: p[:3])
            self._start_load(waiter, name, chosen)
        elif overdue and not has_copy:
            self._hold(waiter, model)
        else:
            self._drop_hold(waiter)

    def _plan(
        self, name: str, waiter: Waiter, model: Model, claim: eviction.Claim, has_copy: bool
    ) -> eviction.Decision | None:
        residents = self.on[name]
        loading = sum(r.phase is Phase.LOADING for r in residents.values())
        if (
            (has_copy and name in self.busy)
            or waiter.version in residents
            or not self._may_use(name, waiter)
            or not self._alone_fits(name, model)
        ):
            return None
        kept = [r for r in residents.values() if r.phase not in (Phase.RESTING, Phase.LEAVING)]
        resting = [r for r in residents.values() if r.phase is Phase.RESTING]
        snapshot = eviction.Snapshot(
            capacity_bytes=self.devices[name].capacity_bytes,
            kept_bytes=sum(self._size(r.version) for r in kept),
            kept_working_bytes=max((self.models[r.version].working_bytes for r in kept), default=0),
            candidates=tuple(self._candidate(r) for r in resting),
            claim=claim,
        )
        plan, _ = eviction.decide(snapshot, eviction.State(), self.settings.eviction, self.now)
        if plan.retry_at is not None:
            self.wakes.append(plan.retry_at)
        return plan if plan.fits and loading < self.settings.loads_per_device else None

    def _candidate(self, resident: Resident) -> eviction.Candidate:
        model = self.models[resident.version]
        return eviction.Candidate(
            version=resident.version,
            size_bytes=model.size_bytes,
            working_bytes=model.working_bytes,
            loaded_at=resident.loaded_at,
            last_used_at=resident.last_used_at,
            gap_s=model.gap_s,
            is_copy=self.pins.get(resident.version) != resident.device
            and any(
                other.phase in (Phase.RESTING, Phase.EXECUTING)
                for name, residents in self.on.items()
                if name != resident.device and (other := residents.get(resident.version)) is not None
            ),
            first_turn=next((self._turn(ticket) for ticket in self.tickets.get(resident.version, ())), None),
            pinned=self.pins.get(resident.version) == resident.device,
        )

    def _start_load(self, waiter: Waiter, name: str, plan: eviction.Decision, why: str = "") -> None:
        for victim in plan.victims:
            self.on[name][victim.version] = Resident(victim.version, name, Phase.LEAVING)
        self.on[name][waiter.version] = Resident(waiter.version, name, Phase.LOADING, self.now, self.now)
        self.covered.add((name, waiter.version))
        self._drop_hold(waiter)
        state = "busy: loads while another executes" if name in self.busy else "idle"
        reason = f"{why or f'for request {waiter.ticket} '}on {name} ({state}); {plan.reason}"
        self.loads.append(Load(waiter.version, name, self._source(waiter.version), plan.victims, waiter.ticket, reason))

    def _source(self, version: str) -> str:
        """Host memory, else a sibling device that holds a copy, else disk."""
        if self.models[version].source == HOST:
            return HOST
        holders = (
            name
            for name, residents in self.on.items()
            if version in residents and residents[version].phase in (Phase.RESTING, Phase.EXECUTING)
        )
        return next(holders, self.models[version].source)

    # ---- holds ----

    def _may_use(self, name: str, waiter: Waiter) -> bool:
        """Whether no overdue request holds the device whose turn is earlier."""
        turn = self._turn(waiter.ticket)
        return all(hold.device != name or self._turn(hold.ticket) >= turn for hold in self.holds)

    def _turn(self, ticket: int) -> int:
        """A request's place in the order in which requests are served."""
        return self.turns.get(ticket, BEFORE_ALL)

    def _hold(self, waiter: Waiter, model: Model) -> None:
        """Claims the device where least stands in the way, unless it claims one already."""
        if any(hold.ticket == waiter.ticket for hold in self.holds):
            return
        open_to = [n for n in self.devices if self._fits_beside_pinned(n, model) and self._may_use(n, waiter)]
        open_to = [n for n in open_to if all(r.phase is not Phase.STUCK for r in self.on[n].values())] or open_to
        if not open_to:
            return
        in_the_way = {
            n: sum(self._size(r.version) for r in self.on[n].values() if r.phase is not Phase.RESTING) for n in open_to
        }
        name = min(open_to, key=lambda n: (in_the_way[n], n in self.busy, n))
        # A later request's claim gives way.
        self.holds = [hold for hold in self.holds if hold.device != name] + [Hold(name, waiter.ticket)]

    def _drop_hold(self, waiter: Waiter) -> None:
        self.holds = [hold for hold in self.holds if hold.ticket != waiter.ticket]

    # ---- sizes ----

    def _size(self, version: str) -> int:
        return self.models[version].size_bytes

    def _alone_fits(self, name: str, model: Model) -> bool:
        return model.size_bytes + model.working_bytes <= self.devices[name].capacity_bytes

    def _fits_beside_pinned(self, name: str, model: Model, more: tuple[Model, ...] = ()) -> bool:
        """Whether a model fits on a device that holds nothing but it, its pinned residents and `more` of them."""
        here = [self.models[v] for v, device in self.pins.items() if device == name and v != model.version]
        return fits_beside(model, [*here, *more], self.devices[name].capacity_bytes)
