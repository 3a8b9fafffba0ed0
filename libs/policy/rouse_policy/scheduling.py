"""Who computes where, what is swapped in, and what leaves for it: one decision over a node's devices.

The order of preference is that of Torpor's Algorithm 1 (section 5.3), for each waiting request in the
order of the snapshot, which is that of arrival within a tenant and by shares between tenants (`fairness`):

1. a device that holds the model and is idle, best one that an executor is attached to already, then the one that has
   rested longest, so that devices take turns;
2. an idle device with room, then an idle one where enough can be evicted (see `eviction`);
3. where another device holds the model, or loads it: wait for that one;
4. else a busy device, so that the load overlaps what executes there.

**Where a load goes** is Algorithm 1's choice (`interference`), among the idle devices that can take it, else among the
busy ones; those where fewest bytes have to leave, then those that have rested longest come first, where it has no
preference. It also names the source: a device with a direct link that holds the model, else host memory; what is in
neither comes from a holder without such a link, or from disk. A copy that another device reads does not leave
meanwhile. By `Mode.RANDOM` chance decides.

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

**Early binding** (`Binding.EARLY`) is what all this is compared with. A model is bound by `binding` when it is first to
be loaded, to the device with most free memory, and stays there for as long as an instance serves it: nothing is evicted
for another model but what nothing serves. Requests wait for that device. Where no device has room, the requests are
refused at once: no time that they could wait would make any.
"""

from __future__ import annotations

from collections.abc import Mapping

from rouse_policy import binding, eviction, interference
from rouse_policy.board import BEFORE_ALL, Board, fits_beside
from rouse_policy.pool import (
    DISK,
    HOST,
    Binding,
    Decision,
    Device,
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

__all__ = [
    "DISK",
    "HOST",
    "PATIENCE_SHARE",
    "Binding",
    "Decision",
    "Device",
    "Executor",
    "Grant",
    "Hold",
    "Load",
    "Model",
    "Phase",
    "Refusal",
    "Resident",
    "Settings",
    "Snapshot",
    "State",
    "Waiter",
    "decide",
    "fits_at_all",
    "fits_beside",
    "patience_s",
]

# A request with a short deadline becomes overdue after this part of its time.
PATIENCE_SHARE = 0.25


def patience_s(waiter: Waiter, settings: Settings) -> float:
    """How long a request waits for memory before it is overdue."""
    return min(settings.patience_s, PATIENCE_SHARE * max(0.0, waiter.deadline - waiter.arrived))


def fits_at_all(size_bytes: int, working_bytes: int, devices: tuple[Device, ...]) -> bool:
    """Whether some device could hold and run such a model if it were alone there."""
    return size_bytes == 0 or any(size_bytes + working_bytes <= d.capacity_bytes for d in devices)


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Decides for every waiting request in the order of the snapshot."""
    board = _Scheduler(snapshot, state, settings, now)
    for version in snapshot.bring:
        if version in snapshot.models:
            board.bring(snapshot.models[version])
    for waiter in snapshot.waiters:
        if waiter.deadline > now and waiter.version in snapshot.models:
            board.serve(waiter)
    wakes = [at for at in board.wakes if at > now]
    held = ", ".join(f"{h.device} for request {h.ticket}" for h in board.holds)
    reason = f"{len(snapshot.waiters)} wait, {len(board.grants)} start, {len(board.loads)} loads begin"
    if board.refusals:
        reason += f", {len(board.refusals)} models find no room"
    decision = Decision(
        tuple(board.grants),
        tuple(board.loads),
        min(wakes, default=None),
        reason + (f"; held: {held}" if held else ""),
        tuple(board.refusals),
    )
    return decision, State(tuple(board.holds), board.chance)


class _Scheduler(Board):
    """Makes the decision for one request after the other."""

    def serve(self, waiter: Waiter) -> None:
        """Grants, loads, or leaves the request waiting."""
        model, executors = self.models[waiter.version], self.free.get(waiter.version, [])
        if waiter.tapes:
            # The device itself, always free where the device is.
            executors = [Executor("", waiter.version)]
        elif waiter.instance:
            executors = [executor for executor in executors if executor.instance == waiter.instance]
        if not executors:
            # It waits for an instance of its own, so a device held for it would stand idle.
            self._drop_hold(waiter)
        elif model.size_bytes == 0:
            self._grant(waiter, HOST, executors[0], "no weights: needs no device")
        elif not self._grant_where_resident(waiter, executors) and not self._covered_by_a_load(waiter):
            if self.settings.binding is Binding.EARLY:
                self._bind(waiter, model)
            else:
                self._load_somewhere(waiter, model)

    def bring(self, model: Model) -> None:
        """Loads a pinned model, as a request that came before all others would."""
        if any(model.version in residents for residents in self.on.values()):
            return
        pin = Waiter(BEFORE_ALL, model.version, self.now, float("inf"))
        if self.settings.binding is Binding.EARLY:
            self._bind(pin, model)
            return
        claim = eviction.Claim(BEFORE_ALL, model.size_bytes, model.working_bytes, overdue=True)
        plans = {
            name: plan
            for name in self.devices
            if self._leaves_room(model, name)
            and (plan := self._plan(name, pin, model, claim, has_copy=False)) is not None
        }
        if plans:
            self._pin(model, self._start_best(pin, plans, "it is pinned"))

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
            key=lambda pair: (
                pair[1].device != pair[0], pair[1].device is not None, self._used_at(pair[0]), pair[0], pair[1].instance
            ),
        )  # fmt: skip
        attached = "attached" if best[1].device == best[0] else "to be attached"
        self._grant(waiter, *best, f"resident on idle {best[0]}, {'a tape answers' if waiter.tapes else attached}")
        return True

    def _grant(self, waiter: Waiter, device: str, executor: Executor, reason: str) -> None:
        self.grants.append(Grant(waiter.ticket, device, executor.instance, reason))
        if not waiter.tapes:
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

    # ---- early binding ----

    def _bind(self, waiter: Waiter, model: Model) -> None:
        """Loads a model to the device that it keeps; refuses its requests where none has room for it."""
        if any(model.version in residents for residents in self.on.values()):
            return
        free = tuple((name, self._unbound_bytes(name, model)) for name in self.devices)
        bound, _ = binding.decide(
            binding.Snapshot(model.size_bytes, free), binding.State(), binding.Settings(), self.now
        )
        if bound.device is None:
            if all(refusal.version != model.version for refusal in self.refusals):
                self.refusals.append(Refusal(model.version, bound.reason))
        elif self._loads_on(bound.device) < self.settings.loads_per_device:
            claim = eviction.Claim(self._turn(waiter.ticket), model.size_bytes, model.working_bytes, overdue=True)
            plan = self._make_room(bound.device, claim, lambda resident: not self.models[resident.version].served)
            if plan.fits:
                why = f"bound early to {bound.device}, {bound.reason}"
                self._start_load(waiter, bound.device, self._source(model.version), plan, why)

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
            further=has_copy,
            gap_s=model.gap_s,
        )  # fmt: skip
        if not overdue:
            self.wakes.append(waiter.arrived + patience_s(waiter, self.settings))
        if has_copy and not replica_due:
            self.wakes.append(waiter.arrived + self.settings.replica_after_s)
        plans = {
            name: plan
            for name in self.devices
            if (plan := self._plan(name, waiter, model, claim, has_copy)) is not None
        }
        if plans:
            self._start_best(waiter, plans, f"for request {waiter.ticket}")
        elif overdue and not has_copy:
            self._hold(waiter, model)
        else:
            self._drop_hold(waiter)

    def _plan(
        self, name: str, waiter: Waiter, model: Model, claim: eviction.Claim, has_copy: bool
    ) -> eviction.Decision | None:
        if (
            (has_copy and name in self.busy)
            or waiter.version in self.on[name]
            or not self._may_use(name, waiter)
            or not self._alone_fits(name, model)
        ):
            return None
        plan = self._make_room(name, claim, lambda _: True)
        if plan.retry_at is not None:
            self.wakes.append(plan.retry_at)
        return plan if plan.fits and self._loads_on(name) < self.settings.loads_per_device else None

    def _start_best(self, waiter: Waiter, plans: Mapping[str, eviction.Decision], why: str) -> str:
        """Starts the load on the device that Algorithm 1 names of those that have a plan; the device."""

        def cost(name: str) -> tuple[int, float, str]:
            return sum(self._size(victim.version) for victim in plans[name].victims), self._used_at(name), name

        idle = [name for name in plans if name not in self.busy]
        snapshot = interference.Snapshot(
            waiter.version, tuple(sorted(idle or plans, key=cost)), self._holders(waiter.version), self._loading()
        )
        best, self.chance = interference.decide(snapshot, self.chance, self.settings.interference, self.now)
        assert best.device is not None
        source = best.source if best.source != HOST else self._source(waiter.version)
        self._start_load(waiter, best.device, source, plans[best.device], f"{why}: {best.reason}")
        return best.device

    def _start_load(self, waiter: Waiter, name: str, source: str, plan: eviction.Decision, why: str) -> None:
        for victim in plan.victims:
            self.on[name][victim.version] = Resident(victim.version, name, Phase.LEAVING)
        self.on[name][waiter.version] = Resident(waiter.version, name, Phase.LOADING, self.now, self.now, source)
        self.covered.add((name, waiter.version))
        self._drop_hold(waiter)
        state = "busy: loads while another executes" if name in self.busy else "idle"
        reason = f"{why} ({state}); {plan.reason}"
        self.loads.append(Load(waiter.version, name, source, plan.victims, waiter.ticket, reason))
