"""The node's devices as one pool: every record in one place, and the snapshot that policies decide on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from rouse_gpu_server.state.ledger import PAGE_BYTES, round_up
from rouse_gpu_server.state.records import Artefact, Device, Executor, Lease, Model, Resident
from rouse_gpu_server.state.residency import Step, Tier
from rouse_gpu_server.state.shares import Shares
from rouse_gpu_server.state.waiting import WaitingList
from rouse_policy import scheduling

# Pause before a pinned version whose load failed is loaded again.
PIN_RETRY_S = 5.0
PHASES = {
    Tier.SWAPPING_IN: scheduling.Phase.LOADING,
    Tier.DEVICE: scheduling.Phase.RESTING,
    Tier.EXECUTING: scheduling.Phase.EXECUTING,
    Tier.EVICTING: scheduling.Phase.LEAVING,
}


@dataclass
class Pool:
    """Everything that gpu-server knows. Methods only change records and keep them consistent."""

    devices: dict[str, Device]
    waiting: WaitingList
    models: dict[str, Model] = field(default_factory=dict)
    artefacts: dict[str, Artefact] = field(default_factory=dict)
    executors: dict[str, Executor] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    shares: Shares = field(default_factory=Shares)
    # The coordinator has told once which executors there are.
    synced: bool = False

    def executors_of(self, version_id: str) -> list[Executor]:
        return [e for e in self.executors.values() if e.version_id == version_id and e.alive]

    def serves(self, version_id: str) -> bool:
        """Whether an executor takes requests of the version, now or once it is free."""
        return any(not e.condemned for e in self.executors_of(version_id))

    def is_alive(self, instance_id: str) -> bool:
        """Whether the instance takes requests, now or once it is free."""
        executor = self.executors.get(instance_id)
        return executor is not None and executor.alive and not executor.condemned

    def holders(self, resident: Resident) -> list[Executor]:
        """Executors that may have the resident's memory mapped."""
        return [e for e in self.executors.values() if e.attached is resident]

    def residents_of(self, version_id: str) -> list[Resident]:
        return [d.residents[version_id] for d in self.devices.values() if version_id in d.residents]

    def models_of(self, digest: str) -> list[Model]:
        return [m for m in self.models.values() if m.artefact.digest == digest]

    def served(self) -> set[str]:
        """Digests of the artefacts that an instance serves."""
        living = (self.models.get(e.version_id) for e in self.executors.values() if e.alive)
        return {model.artefact.digest for model in living if model is not None}

    def artefact_in_use(self, artefact: Artefact, served: Collection[str], now: float) -> str:
        """Why an artefact must stay on its tiers (`now` in monotonic seconds); empty where it may go."""
        if artefact.pins:
            return "being read"
        if artefact.digest in served:
            return "an instance serves it"
        if artefact.held_until > now:
            return f"staged for an instance that has {artefact.held_until - now:.0f} s to appear"
        return ""

    def forget(self, artefact: Artefact) -> None:
        """Removes the records of an artefact that is on no tier, and of its versions that nothing serves."""
        for model in self.models_of(artefact.digest):
            if not model.dropping and not self.executors_of(model.version_id):
                del self.models[model.version_id]
        if not self.models_of(artefact.digest):
            del self.artefacts[artefact.digest]

    # ---- leases ----

    def claim(self, lease: Lease, reason: str, now: float, wall: float) -> None:
        """Takes the device's compute slot, its working memory and the executor."""
        resident = lease.resident
        assert lease.executor.usable
        if resident is not None:
            assert resident.device.lease is None
            resident.machine = resident.machine.after(Step.EXECUTE, reason, wall)
            lease.passing_bytes = lease.model.passing_bytes
            resident.device.ledger.reserve(lease.passing_bytes)
            resident.device.lease = lease
            resident.last_used_at = now
            lease.first, lease.moved_s, resident.used = not resident.used, resident.moved_s, True
            lease.charged_s = self.shares.granted(lease.tenant, lease.weight)
        lease.model.artefact.last_used_at = now
        lease.executor.lease = lease

    def name_lease(self, lease: Lease) -> None:
        """Gives a claimed lease its id under the executor's present attachment."""
        lease.executor.leases_made += 1
        lease.lease_id = f"{lease.executor.attachment_id}/{lease.executor.leases_made}"
        self.leases[lease.lease_id] = lease

    def end(self, lease: Lease, reason: str, now: float, wall: float) -> None:
        """Gives everything back that `claim` took."""
        resident = lease.resident
        if resident is not None:
            assert resident.device.lease is lease
            resident.device.ledger.release(lease.passing_bytes)
            resident.device.lease = None
            resident.machine = resident.machine.after(Step.FINISHED, reason, wall)
            resident.last_used_at = now
            self.shares.ended(lease.tenant, lease.weight, lease.charged_s, now - lease.granted_at)
            if not len(self.waiting) and all(device.lease is None for device in self.devices.values()):
                self.shares.clear()
        assert lease.executor.lease is lease
        lease.executor.lease = None
        self.leases.pop(lease.lease_id, None)

    # ---- working memory ----

    def measured(self, version_id: str, size_bytes: int) -> bool:
        """A version was seen to hold so much beside its weights; whether that is more than was known.

        It is never taken for more than the largest device has beside the weights: what has run can be placed.
        """
        model = self.models.get(version_id)
        if model is None:
            return False
        largest = max(device.ledger.capacity_bytes for device in self.devices.values())
        size = min(round_up(size_bytes), max(0, largest - model.size_bytes) // PAGE_BYTES * PAGE_BYTES)
        if size <= model.measured_bytes:
            return False
        model.measured_bytes = size
        for device in self.devices.values():
            lease = device.lease
            if lease is not None and lease.model is model:
                # What it keeps is counted for itself from now on.
                less = max(0, lease.passing_bytes - model.passing_bytes)
                device.ledger.release(less)
                lease.passing_bytes -= less
            if version_id in device.residents:
                device.growths += 1
                device.settle()
        return True

    # ---- policy ----

    def is_pinned(self, model: Model) -> bool:
        """Whether one copy of the model stays on a device: as long as an instance serves it."""
        return model.version.spec.pinned and not model.dropping and self.serves(model.version_id)

    def to_bring(self, now: float) -> dict[str, float]:
        """Pinned versions that should be on a device and are on none, with when to try: now, or a while after
        a load that failed."""
        due = {}
        for model in self.models.values():
            if model.size_bytes and self.is_pinned(model) and model.artefact.on_disk:
                failed_at = model.swap_failed_at
                if not self.residents_of(model.version_id):
                    due[model.version_id] = now if failed_at is None else max(now, failed_at + PIN_RETRY_S)
        return due

    def snapshot(self, bring: tuple[str, ...] = ()) -> scheduling.Snapshot:
        """What the scheduling policy needs to know; `bring` are pinned versions to be loaded."""
        free = [e for e in self.executors.values() if e.usable]
        counts: dict[str, int] = {}
        for executor in free:
            counts[executor.version_id] = counts.get(executor.version_id, 0) + 1
        waiters = self.shares.order(self.waiting.heads(counts, len(self.devices)))
        residents = [r for d in self.devices.values() for r in d.residents.values()]
        served = {e.version_id for e in self.executors.values() if e.alive and not e.condemned}
        versions = {w.version_id for w in waiters} | {r.model.version_id for r in residents} | set(bring)
        return scheduling.Snapshot(
            devices=tuple(
                scheduling.Device(d.name, d.ledger.capacity_bytes, d.lease is not None) for d in self.devices.values()
            ),
            residents=tuple(
                scheduling.Resident(
                    r.model.version_id,
                    r.device.name,
                    self._phase(r),
                    r.loaded_at,
                    r.last_used_at,
                    r.source if r.state is Tier.SWAPPING_IN else "",
                )
                for r in residents
            ),
            models={
                v: self._model(m, v in served)
                for v in versions
                if (m := self.models.get(v)) is not None and m.artefact.on_disk
            },
            executors=tuple(
                scheduling.Executor(
                    e.instance_id, e.version_id, e.attached.device.name if e.attached is not None else None
                )
                for e in free
                if e.version_id in versions
            ),
            waiters=tuple(
                scheduling.Waiter(w.ticket, w.version_id, w.arrived, w.deadline, w.instance_id, bool(w.tape_key))
                for w in waiters
            ),
            bring=bring,
            largest=self._largest(),
        )

    def _largest(self) -> scheduling.Model | None:
        """The model that needs most of a device, of those that are not pinned; none where nothing is pinned."""
        if not any(self.is_pinned(model) for model in self.models.values()):
            return None
        others = [
            m for m in self.models.values() if m.size_bytes and not self.is_pinned(m) and self.serves(m.version_id)
        ]
        largest = max(others, key=lambda m: m.size_bytes + m.working_bytes, default=None)
        return None if largest is None else self._model(largest)

    def _phase(self, resident: Resident) -> scheduling.Phase:
        if resident.state is Tier.EVICTING and any(e.stuck for e in self.holders(resident)):
            return scheduling.Phase.STUCK
        return PHASES[resident.state]

    def _model(self, model: Model, served: bool = True) -> scheduling.Model:
        in_memory = model.artefact.machine.state is Tier.HOST
        source = scheduling.HOST if in_memory else scheduling.DISK
        return scheduling.Model(
            model.version_id, model.size_bytes and model.size_bytes + model.staying_bytes, model.passing_bytes, source,
            model.gap_s, self.is_pinned(model),
            served, tuple(sorted(device for device, weight in model.weights_on.items() if weight.heavy)),
        )  # fmt: skip

    def check(self) -> None:
        """Raises AssertionError where the records contradict each other; for tests and idle moments."""
        for device in self.devices.values():
            ledger, residents = device.ledger, device.residents.values()
            assert ledger.mapped_bytes == sum(r.segment.size_bytes for r in residents if r.segment is not None)
            promised = sum(r.promised_bytes for r in residents)
            staying = sum(r.staying_bytes for r in residents)
            passing = device.lease.passing_bytes if device.lease is not None else 0
            assert ledger.reserved_bytes == promised + staying + passing
            assert all(r.staying_bytes <= r.model.staying_bytes for r in residents)
            assert ledger.free_bytes >= 0
            executing = [r for r in residents if r.state is Tier.EXECUTING]
            assert len(executing) == (device.lease is not None)
            assert all(r.segment is not None for r in residents if r.state in (Tier.DEVICE, Tier.EXECUTING))
        for executor in self.executors.values():
            if executor.attached is not None:
                resident = executor.attached
                assert resident.device.residents.get(executor.version_id) is resident
                assert resident.segment is not None
            assert executor.lease is None or executor.lease.executor is executor
