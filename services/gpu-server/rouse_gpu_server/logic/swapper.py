"""Swapping in and evicting. One load a version and device at a time; whatever fails rolls back whole."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rouse_common.clock import Clock
from rouse_common.errors import Internal, ResourceExhausted, RouseError, Unavailable
from rouse_gpu_server import metrics
from rouse_gpu_server.backends import CopyCancelled, Segment
from rouse_gpu_server.backends.fabric import Fabric
from rouse_gpu_server.logic.attachments import Attachments
from rouse_gpu_server.logic.stager import Stager
from rouse_gpu_server.logic.work import Background, in_thread
from rouse_gpu_server.state.pool import Pool
from rouse_gpu_server.state.records import Artefact, Model, Phase, Resident, Swap
from rouse_gpu_server.state.residency import Step, Tier, machine
from rouse_gpu_server.state.wakeup import Wakeup
from rouse_policy import scheduling

LOG = logging.getLogger(__name__)
MIB = 2**20


class Postponed(Unavailable):
    """The load cannot get its memory for now; those who wait for it keep waiting."""


@dataclass
class _Loading:
    resident: Resident
    evicted: tuple[str, ...]
    reason: str
    started: float
    started_at: float
    # Of the device, when it was decided.
    growths: int
    copied_bytes: int = 0
    # From when on its memory is taken and filled, and whether no other copy was on the same links since.
    moving_since: float | None = None
    alone: bool = True
    cancelled: threading.Event = field(default_factory=threading.Event)
    task: asyncio.Task[None] | None = None


class Swapper:
    """Carries loads and evictions out that the policy decided."""

    def __init__(
        self,
        pool: Pool,
        attachments: Attachments,
        stager: Stager,
        background: Background,
        wakeup: Wakeup,
        clock: Clock,
        threads: ThreadPoolExecutor,
        fabric: Fabric,
    ) -> None:
        self._fabric = fabric
        self._pool, self._attachments, self._stager = pool, attachments, stager
        self._background, self._wakeup, self._clock, self._threads = background, wakeup, clock, threads
        self._loading: dict[tuple[str, str], _Loading] = {}
        self._leaving: dict[tuple[str, str], asyncio.Task[int]] = {}

    # ---- evicting ----

    def evict(self, resident: Resident, reason: str) -> asyncio.Task[int]:
        """Starts to evict a resident that rests; the task ends with the bytes freed. Single flight."""
        key = (resident.model.version_id, resident.device.name)
        running = self._leaving.get(key)
        if running is not None:
            return running
        resident.machine = resident.machine.after(Step.EVICT, f"being evicted: {reason}", self._clock.now())
        task = self._background.start(self._evict(resident, reason), f"evict {key}")
        self._leaving[key] = task
        task.add_done_callback(lambda _: self._leaving.pop(key, None))
        return task

    async def _evict(self, resident: Resident, reason: str) -> int:
        device, model = resident.device, resident.model
        started = self._clock.monotonic()
        while holders := self._pool.holders(resident):
            await asyncio.wait([self._attachments.settle(executor) for executor in holders])
        await self._attachments.unmap(resident)
        segment = resident.segment
        assert segment is not None
        await self._free(resident, segment)
        resident.machine = resident.machine.after(
            Step.EVICTED, f"evicted from {device.name}: {reason}", self._clock.now()
        )
        model.left = resident.machine
        del device.residents[model.version_id]
        now = self._clock.monotonic()
        device.evictions += 1
        metrics.MODEL_EVICTED.labels(device.name).inc()
        metrics.AGE_AT_EVICTION.labels(device.name).observe(now - resident.last_used_at)
        LOG.info(
            "evicted function=%s version=%s device=%s size_mib=%.0f idle_s=%.3f took_ms=%.1f reason=%s",
            model.function, model.version_id, device.name, segment.size_bytes / MIB,
            started - resident.last_used_at, (now - started) * 1000, reason,
        )  # fmt: skip
        self._wakeup.kick()
        return segment.size_bytes

    async def _free(self, resident: Resident, segment: Segment) -> None:
        """Nobody has it mapped any more."""
        device = resident.device
        if not segment.in_core:
            await in_thread(self._threads, threading.Event(), lambda: device.backend.free(segment))
        resident.segment = None
        device.ledger.unmap(segment.size_bytes)
        self._let_go(resident)

    def _let_go(self, resident: Resident) -> None:
        """What it kept beside its weights is gone with its sessions."""
        resident.device.ledger.release(resident.staying_bytes)
        resident.staying_bytes = 0

    # ---- loading ----

    def load(self, decision: scheduling.Load) -> None:
        """Starts the load that a decision names, and the evictions that it needs."""
        device, model = self._pool.devices[decision.device], self._pool.models[decision.version]
        for victim in decision.victims:
            self.evict(device.residents[victim.version], f"room for function={model.function}: {victim.reason}")
        now, wall = self._clock.monotonic(), self._clock.now()
        start = machine(f"{model.function} on {device.name}", model.artefact.machine.state, "chosen", wall)
        resident = Resident(
            model, device, start.after(Step.SWAP_IN, decision.reason, wall),
            source=decision.source, brought=decision.reason, loaded_at=now, last_used_at=now,
        )  # fmt: skip
        device.residents[model.version_id] = resident
        evicted = tuple(self._function(victim.version) for victim in decision.victims)
        loading = _Loading(resident, evicted, decision.reason, now, wall, device.growths)
        key = (model.version_id, device.name)
        assert key not in self._loading
        self._loading[key] = loading
        loading.task = self._background.start(self._run(loading), f"load {key}")

    async def cancel_loads(self, version_id: str) -> None:
        """Stops a version's loads and waits until each has rolled back."""
        loads = [loading for (version, _), loading in self._loading.items() if version == version_id]
        for loading in loads:
            assert loading.task is not None
            loading.task.cancel()
        tasks = [loading.task for loading in loads if loading.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, loading: _Loading) -> None:
        """A load with its end, good or bad, written down."""
        resident, error = loading.resident, None
        model, device = resident.model, resident.device
        model.artefact.pins += 1
        try:
            await self._swap_in(loading)
        except (RouseError, CopyCancelled, OSError) as failure:
            error = failure if isinstance(failure, RouseError) else self._as_error(loading, failure)
            await self._roll_back(loading, str(error))
        except asyncio.CancelledError:
            await self._roll_back(loading, "cancelled")
            raise
        finally:
            model.artefact.pins -= 1
            del self._loading[(model.version_id, device.name)]
            model.swaps_ended += 1
            swap = Swap(
                model.swaps_ended,
                device.name, model.size_bytes, resident.source, loading.evicted, loading.reason,
                loading.started_at, self._clock.now(), str(error or ""),
            )  # fmt: skip
            model.swaps.append(swap)
            self._wakeup.kick()
        if error is not None:
            model.swap_failed_at = self._clock.monotonic()
            self._failed(loading, error)
            return
        model.swap_failed_at = None
        self._succeeded(loading)

    def _succeeded(self, loading: _Loading) -> None:
        model, device = loading.resident.model, loading.resident.device
        took = self._clock.monotonic() - loading.started
        metrics.LOADMODEL.labels(device.name).observe(took)
        metrics.LOADMODEL_BYTES.labels(device.name).inc(model.size_bytes)
        LOG.info(
            "swapped in function=%s version=%s device=%s size_mib=%.0f took_ms=%.1f source=%s evicted=%s reason=%s",
            model.function, model.version_id, device.name, model.size_bytes / MIB, took * 1000,
            loading.resident.source, ",".join(loading.evicted) or "none", loading.reason,
        )  # fmt: skip

    def _failed(self, loading: _Loading, error: RouseError) -> None:
        model, device = loading.resident.model, loading.resident.device
        metrics.LOADMODEL_FAILURE.labels(device.name, error.reason).inc()
        LOG.warning(
            "swap failed function=%s version=%s device=%s copied_mib=%.0f error=%s reason=%s",
            model.function, model.version_id, device.name, loading.copied_bytes / MIB, error, loading.reason,
        )  # fmt: skip
        if isinstance(error, Postponed) or any(
            r.state in (Tier.DEVICE, Tier.EXECUTING) for r in self._pool.residents_of(model.version_id)
        ):
            return
        for waiter in self._pool.waiting.of(model.version_id):
            self._pool.waiting.remove(waiter)
            if not waiter.outcome.done():
                waiter.outcome.set_exception(error)

    async def _swap_in(self, loading: _Loading) -> None:
        resident = loading.resident
        model, device = resident.model, resident.device
        await self._room(loading)
        source = await self._source(loading)
        size = model.size_bytes
        device.ledger.reserve(size)
        resident.promised_bytes = size
        device.settle()
        metrics.LOADING_QUEUE_DELAY.labels(device.name).observe(self._clock.monotonic() - loading.started)
        self._moves(loading)
        if self._attachments.in_core(model):
            await self._map(resident, source)
        else:
            await self._copy(loading, source)
        if resident.source == scheduling.HOST and loading.alone:
            assert loading.moving_since is not None
            resident.moved_s = self._clock.monotonic() - loading.moving_since
        await self._attach_someone(resident)
        resident.loaded_at = resident.last_used_at = self._clock.monotonic()
        resident.machine = resident.machine.after(Step.SWAPPED_IN, loading.reason, self._clock.now())
        model.swap_ins += 1
        device.swap_ins += 1

    async def _map(self, resident: Resident, image: Path) -> None:
        """Has the native executor take the weights; what is not there yet is waited for by the operators that read it,
        so the model counts as loaded once it is mapped (Torpor, 4.3: transfer and execution overlap)."""
        size = resident.promised_bytes
        resident.segment = Segment(image, size, in_core=True)
        resident.device.ledger.map_reserved(size)
        resident.promised_bytes = 0
        first = next((waiter.tape_key for waiter in self._pool.waiting.of(resident.model.version_id)), "")
        await self._attachments.bring(resident, first)

    async def _copy(self, loading: _Loading, source: Path) -> None:
        """Fills a segment of the device."""
        resident = loading.resident
        model, device, size = resident.model, resident.device, resident.promised_bytes
        digest, name = model.artefact.digest, uuid.uuid4().hex[:12]

        def allocate() -> None:
            # Set in the thread, so that a cancelled load knows what it has to free.
            resident.segment = device.backend.allocate(digest, name, size)

        try:
            await in_thread(self._threads, loading.cancelled, allocate)
        finally:
            if resident.segment is not None:
                device.ledger.map_reserved(size)
                resident.promised_bytes = 0
        segment = resident.segment
        assert segment is not None

        def progress(done_bytes: int) -> None:
            loading.copied_bytes = done_bytes

        carry = self._fabric.transfer(resident.source, device.name).carry
        try:
            await in_thread(
                self._threads,
                loading.cancelled,
                lambda: device.backend.copy(source, segment, loading.cancelled, progress, carry),
            )
        except FileNotFoundError as error:
            # A sibling device evicted its copy just now; the next decision reads from elsewhere.
            raise Postponed("SOURCE_LEFT", f"{resident.source} no longer holds function {model.function}") from error

    def _moves(self, loading: _Loading) -> None:
        """Takes note of when a copy begins, and of those that it shares a link to host memory with."""
        mine = loading.resident
        for other in self._loading.values():
            theirs = other.resident
            if (
                other is not loading
                and other.moving_since is not None
                and self._pool.devices.keys().isdisjoint((mine.source, theirs.source))
                and self._fabric.beside(mine.device.name, theirs.device.name)
            ):
                loading.alone = other.alone = False
        loading.moving_since = self._clock.monotonic()

    async def _source(self, loading: _Loading) -> Path:
        """File to copy from: a sibling device where the decision says so and it still holds the model."""
        model = loading.resident.model
        sibling = self._pool.devices.get(loading.resident.source)
        copy = sibling.residents.get(model.version_id) if sibling is not None else None
        segment = copy.segment if copy is not None and copy.state in (Tier.DEVICE, Tier.EXECUTING) else None
        # Native executors read host images alone.
        if segment is not None and not segment.in_core:
            return segment.path
        if model.artefact.machine.state is not Tier.HOST:
            loading.resident.source = scheduling.DISK
            await self._stager.stage(model.artefact.digest)
        else:
            loading.resident.source = scheduling.HOST
        assert model.artefact.image is not None
        return model.artefact.image

    async def _room(self, loading: _Loading) -> None:
        """Waits for the memory that evictions of this and earlier decisions give back. Raises Postponed."""
        resident, device = loading.resident, loading.resident.device
        while not device.has_room_for(resident):
            leaving = [r for r in device.residents.values() if r.state is Tier.EVICTING]
            stuck = [r for r in leaving if any(e.stuck for e in self._pool.holders(r))]
            if not leaving and device.growths > loading.growths:
                raise Postponed(
                    "DEVICE_MEMORY_FULL",
                    f"device {device.name} has no room: a function there needs more than was known before",
                    device=device.name,
                )
            if not leaving:
                raise ResourceExhausted(
                    "DEVICE_MEMORY_FULL", f"device {device.name} has no room left", device=device.name
                )
            if stuck:
                raise Postponed(
                    "DEVICE_MEMORY_FULL",
                    f"device {device.name} has no room: function {stuck[0].model.function} does not leave",
                    device=device.name,
                )
            await self._wakeup.changed()

    async def _attach_someone(self, resident: Resident) -> None:
        """Attaches an idle executor right away, so that the first lease costs no call.

        Where that fails the weights are there all the same; the lease attaches another one.
        """
        for executor in self._pool.executors_of(resident.model.version_id):
            if executor.usable and executor.phase is Phase.DETACHED:
                try:
                    await self._attachments.attach(executor, resident.model, resident)
                except RouseError as error:
                    LOG.warning("attach after swap failed instance=%s error=%s", executor.instance_id, error)
                return

    async def _roll_back(self, loading: _Loading, why: str) -> None:
        """Leaves the device as if the load had not begun."""
        resident = loading.resident
        if self._background.stopped:
            # Nobody would be told any more; the devices are purged at the end.
            return
        device, segment = resident.device, resident.segment
        while holders := self._pool.holders(resident):
            await asyncio.wait([self._attachments.settle(executor) for executor in holders])
        await self._attachments.unmap(resident)
        if segment is not None:
            await self._free(resident, segment)
        elif resident.promised_bytes:
            device.ledger.release(resident.promised_bytes)
            resident.promised_bytes = 0
            self._let_go(resident)
        resident.machine = resident.machine.after(Step.SWAP_FAILED, why, self._clock.now())
        del device.residents[resident.model.version_id]

    def _as_error(self, loading: _Loading, failure: Exception) -> RouseError:
        model, device = loading.resident.model, loading.resident.device
        return Internal(
            "SWAP_FAILED",
            f"swapping function {model.function} in to device {device.name} failed after {loading.copied_bytes} B: "
            f"{type(failure).__name__} {failure}",
            function=model.function,
            device=device.name,
        )

    def _function(self, version_id: str) -> str:
        return self._pool.models[version_id].function

    # ---- for those who wait until nothing is left ----

    async def clear(self, model: Model, reason: str) -> int:
        """Evicts a version from every device, waiting for what executes. Returns the bytes freed."""
        freed = 0
        await self.cancel_loads(model.version_id)
        while residents := self._pool.residents_of(model.version_id):
            resting = [r for r in residents if r.state in (Tier.DEVICE, Tier.EVICTING)]
            for task in [self.evict(r, reason) for r in resting]:
                freed += await asyncio.shield(task)
            if not resting:
                await self._wakeup.changed()
        while any(e.lease is not None and e.lease.model is model for e in self._pool.executors.values()):
            await self._wakeup.changed()
        return freed

    async def clear_artefact(self, artefact: Artefact) -> None:
        """Evicts the copies of an artefact that leaves host memory; nothing serves it, so nothing executes."""
        for model in self._pool.models_of(artefact.digest):
            await self.clear(model, "its host copy leaves")
            await self._attachments.forget(model)
