"""The pool while one decision is being made: a snapshot, and what was decided so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rouse_policy import eviction
from rouse_policy.pool import (
    HOST,
    Executor,
    Grant,
    Hold,
    Load,
    Model,
    Phase,
    Refusal,
    Resident,
    Settings,
    Snapshot,
    State,
    Waiter,
)

# The ticket of what is brought without a request, and its turn.
BEFORE_ALL = -1


def fits_beside(model: Model, pinned: Sequence[Model], capacity_bytes: int) -> bool:
    """Whether a device could hold a model and some that never leave it, and run each of them."""
    every = [model, *pinned]
    return sum(m.size_bytes for m in every) + max(m.working_bytes for m in every) <= capacity_bytes


class Board:
    """What is where, who is free, which claims and pins stand, and how much memory all that takes."""

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
        self.chance = state.chance
        self.covered: set[tuple[str, str]] = set()
        self.largest = snapshot.largest
        self.pins: dict[str, str] = {}
        for resident in sorted(snapshot.residents, key=lambda r: (r.loaded_at, r.version, r.device)):
            if resident.version in self.models and resident.phase not in (Phase.LEAVING, Phase.STUCK):
                self._pin(self.models[resident.version], resident.device)
        self.grants: list[Grant] = []
        self.loads: list[Load] = []
        self.refusals: list[Refusal] = []
        self.wakes: list[float] = []

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

    # ---- what eviction and loads are told ----

    def _make_room(self, name: str, claim: eviction.Claim, may_leave: Callable[[Resident], bool]) -> eviction.Decision:
        """What the eviction policy says of a claim on a device; no candidate is what may not leave anyway."""
        staying = [r for r in self.on[name].values() if r.phase is not Phase.LEAVING]
        resting = [r for r in staying if r.phase is Phase.RESTING and may_leave(r) and not self._is_read(r)]
        kept = [r for r in staying if r not in resting]
        snapshot = eviction.Snapshot(
            capacity_bytes=self.devices[name].capacity_bytes,
            kept_bytes=sum(self._size(r.version) for r in kept),
            kept_working_bytes=max((self.models[r.version].working_bytes for r in kept), default=0),
            candidates=tuple(self._candidate(r) for r in resting),
            claim=claim,
        )
        plan, _ = eviction.decide(snapshot, eviction.State(), self.settings.eviction, self.now)
        return plan

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
            heavy=resident.device in model.heavy_on,
        )

    def _used_at(self, name: str) -> float:
        """When a device last executed or loaded something, as far as what is on it tells."""
        return max((resident.last_used_at for resident in self.on[name].values()), default=float("-inf"))

    # ---- where a load comes from ----

    def _holders(self, version: str) -> tuple[str, ...]:
        """Devices that hold the model whole."""
        return tuple(
            name
            for name, residents in self.on.items()
            if version in residents and residents[version].phase in (Phase.RESTING, Phase.EXECUTING)
        )

    def _source(self, version: str) -> str:
        """Host memory, else a device that holds a copy, else disk."""
        source = self.models[version].source
        return source if source == HOST else next(iter(self._holders(version)), source)

    def _loading(self) -> dict[str, bool]:
        """Devices that load over their link to the host, and whether what they load is heavy there."""
        topology, found = self.settings.interference.topology, dict[str, bool]()
        for name, residents in self.on.items():
            for resident in residents.values():
                if resident.phase is Phase.LOADING and not topology.bandwidth(resident.source, name):
                    heavy = name in self.models[resident.version].heavy_on
                    found[name] = heavy or found.get(name, False)
        return found

    def _is_read(self, resident: Resident) -> bool:
        """Whether another device copies it."""
        return any(
            other.phase is Phase.LOADING and other.source == resident.device
            for residents in self.on.values()
            if (other := residents.get(resident.version)) is not None
        )

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

    def _loads_on(self, name: str) -> int:
        return sum(resident.phase is Phase.LOADING for resident in self.on[name].values())

    def _unbound_bytes(self, name: str, model: Model) -> int:
        """Memory for weights of the model that no other one has taken for as long as it is served."""
        bound = [
            self.models[r.version]
            for r in self.on[name].values()
            if r.phase is not Phase.LEAVING and (r.phase is not Phase.RESTING or self.models[r.version].served)
        ]
        working = max(m.working_bytes for m in [model, *bound])
        return max(0, self.devices[name].capacity_bytes - working - sum(m.size_bytes for m in bound))

    def _size(self, version: str) -> int:
        return self.models[version].size_bytes

    def _alone_fits(self, name: str, model: Model) -> bool:
        return model.size_bytes + model.working_bytes <= self.devices[name].capacity_bytes

    def _fits_beside_pinned(self, name: str, model: Model, more: tuple[Model, ...] = ()) -> bool:
        """Whether a model fits on a device that holds nothing but it, its pinned residents and `more` of them."""
        here = [self.models[v] for v, device in self.pins.items() if device == name and v != model.version]
        return fits_beside(model, [*here, *more], self.devices[name].capacity_bytes)
