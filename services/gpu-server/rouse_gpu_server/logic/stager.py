"""Bringing artefacts to the node: model-repository → disk → host memory; both bounded, least recent use first."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rouse_common.clock import Clock
from rouse_common.errors import DataLoss, DeadlineExceeded, Internal, ResourceExhausted, RouseError
from rouse_contracts.repository import Artefact as ArtefactMessage
from rouse_gpu_server import metrics
from rouse_gpu_server.adapters.disk import Disk, check_digest, check_files
from rouse_gpu_server.adapters.images import Images, check_layout
from rouse_gpu_server.adapters.repository import Repository
from rouse_gpu_server.logic.download import fetch_blobs
from rouse_gpu_server.logic.work import Background, in_thread
from rouse_gpu_server.state.ledger import round_up
from rouse_gpu_server.state.pool import Pool
from rouse_gpu_server.state.records import Artefact
from rouse_gpu_server.state.residency import Step, Tier, machine
from rouse_gpu_server.state.wakeup import Wakeup
from rouse_policy import residency, tiering

LOG = logging.getLogger(__name__)
MIB = 2**20
# Artefacts fetched at once; further ones wait their turn.
MAX_STAGING = 4
# Bytes a second that an image is built with from disk, until one was measured here.
FIRST_RATE = 500e6


@dataclass(frozen=True)
class TierLimits:
    """host_bytes, disk_bytes: sizes of the tiers; stage_s: how long one artefact may take."""

    host_bytes: int
    disk_bytes: int
    stage_s: float


class Stager:
    """Owns the disk tier and the host tier."""

    def __init__(
        self,
        pool: Pool,
        repository: Repository,
        disk: Disk,
        images: Images,
        background: Background,
        wakeup: Wakeup,
        clock: Clock,
        threads: ThreadPoolExecutor,
        limits: TierLimits,
    ) -> None:
        self._pool, self._repository, self._disk, self._images = pool, repository, disk, images
        self._background, self._wakeup, self._clock = background, wakeup, clock
        self._threads, self._limits = threads, limits
        self._staging: dict[str, asyncio.Task[RouseError | None]] = {}
        self._slots = asyncio.Semaphore(MAX_STAGING)
        self._host_room, self._disk_room = asyncio.Lock(), asyncio.Lock()
        self._wanted: Counter[str] = Counter()
        self._promised_bytes = 0
        self.host_used_bytes = 0
        self._disk_used_bytes = 0
        self._image_rate = FIRST_RATE
        # Evicts an artefact's copies from the devices; set by the app, as swapping needs staging too.
        self.clear_devices: Callable[[Artefact], Awaitable[None]]

    @property
    def disk_used_bytes(self) -> int:
        return self._disk_used_bytes + self._promised_bytes

    async def recover(self) -> None:
        """Finds what an earlier life left behind: whole artefacts and images stay, the rest is removed."""
        nothing = threading.Event()
        messages = await in_thread(self._threads, nothing, self._disk.recover)
        sizes = {digest: message.layout.image_bytes for digest, message in messages.items()}
        images = await in_thread(self._threads, nothing, lambda: self._images.recover(sizes))
        for digest, message in messages.items():
            artefact = self.artefact(digest)
            artefact.last_used_at = self._clock.monotonic()
            self._fetched(artefact, message, "found on disk at start")
            if digest in images:
                self._imaged(artefact, "found in host memory at start")
        await self._measure_disk()
        LOG.info(
            "tiers recovered artefacts=%d images=%d host_used_mib=%.0f disk_used_mib=%.0f",
            len(messages), len(images), self.host_used_bytes / MIB, self._disk_used_bytes / MIB,
        )  # fmt: skip
        metrics.TIER_CAPACITY.labels("host").set(self._limits.host_bytes)
        metrics.TIER_CAPACITY.labels("disk").set(self._limits.disk_bytes)
        metrics.TIER_USED.labels("host").set_function(lambda: self.host_used_bytes)
        metrics.TIER_USED.labels("disk").set_function(lambda: self.disk_used_bytes)

    def artefact(self, digest: str) -> Artefact:
        """The record of an artefact, made where there is none. Raises DataLoss BAD_DIGEST."""
        record = self._pool.artefacts.get(digest)
        if record is None:
            check_digest(digest, "the version's artefact")
            start = machine(f"artefact {digest[:12]}", Tier.ABSENT, "not fetched yet", self._clock.now())
            record = self._pool.artefacts[digest] = Artefact(digest, start)
        return record

    async def stage(self, digest: str) -> Artefact:
        """Brings an artefact to host memory. Single flight: all callers share one attempt and its error.

        Raises NotFound ARTEFACT_NOT_FOUND, ResourceExhausted HOST_MEMORY_FULL | DISK_FULL, DataLoss
        HASH_MISMATCH | BAD_PATH | BAD_LAYOUT, Unavailable, DeadlineExceeded.
        """
        artefact = self.artefact(digest)
        artefact.last_used_at = self._clock.monotonic()
        if artefact.machine.state is not Tier.HOST:
            task = self._staging.get(digest)
            if task is None:
                task = self._staging[digest] = self._background.start(self._stage(artefact), f"stage {digest[:12]}")
            await asyncio.wait([task])
            error = task.result() if not task.cancelled() else DeadlineExceeded("CANCELLED", f"staging {digest} ended")
            if error is not None:
                raise error
        return artefact

    def is_staging(self, digest: str) -> bool:
        return digest in self._staging

    async def _stage(self, artefact: Artefact) -> RouseError | None:
        """Returns its error instead of raising it: it belongs to the callers, not to the service."""
        started, was = self._clock.monotonic(), artefact.machine.state
        artefact.pins += 1
        error: RouseError | None = None
        try:
            async with asyncio.timeout(self._limits.stage_s), self._slots:
                if artefact.machine.state is Tier.ABSENT:
                    await self._fetch(artefact)
                if artefact.machine.state is Tier.DISK:
                    await self._image(artefact)
        except RouseError as failure:
            error = failure
        except TimeoutError:
            error = DeadlineExceeded(
                "STAGE_TIMEOUT", f"staging {artefact.digest} took over {self._limits.stage_s:.0f} s"
            )
        except OSError as failure:
            error = Internal("STAGE_FAILED", f"staging artefact {artefact.digest} failed: {failure}")
        finally:
            artefact.pins -= 1
            self._staging.pop(artefact.digest, None)
            self._wakeup.kick()
        took = self._clock.monotonic() - started
        functions = ",".join(sorted({m.function for m in self._pool.models_of(artefact.digest)})) or "none"
        metrics.STAGED.labels("failed" if error else "staged").observe(took)
        if error is not None:
            LOG.warning("staging failed function=%s artefact=%s error=%s", functions, artefact.digest, error)
            return error
        LOG.info(
            "staged function=%s artefact=%s from=%s size_mib=%.0f image_mib=%.0f took_ms=%.1f",
            functions, artefact.digest, was.value, artefact.message.size_bytes / MIB if artefact.message else 0,
            artefact.image_bytes / MIB, took * 1000,
        )  # fmt: skip
        return None

    # ---- disk ----

    async def _fetch(self, artefact: Artefact) -> None:
        message = await self._repository.get_artefact(artefact.digest)
        if message.digest != artefact.digest:
            raise DataLoss("HASH_MISMATCH", f"model-repository answered {message.digest} for {artefact.digest}")
        check_files(artefact.digest, message.files)
        check_layout(message.layout, {f.path: f.size_bytes for f in message.files}, artefact.digest)
        sizes = {f.digest: f.size_bytes for f in message.files}
        try:
            fetched = await self.bring(message.digest, sizes, lambda: self._disk.assemble(message))
        except BaseException:
            await self._forget(message)
            raise
        self._fetched(artefact, message, f"fetched {fetched} B from model-repository")

    async def bring(self, digest: str, sizes: Mapping[str, int], place: Callable[[], object]) -> int:
        """Brings blobs (digest: bytes) of an artefact to disk and has them placed, in a thread. Returns the bytes
        fetched. Raises ResourceExhausted DISK_FULL, DataLoss HASH_MISMATCH, Unavailable."""
        self._wanted.update(sizes.keys())
        promised, nothing = 0, threading.Event()
        try:
            async with self._disk_room:
                missing = await in_thread(self._threads, nothing, lambda: self._disk.missing(sizes))
                await self._make_disk_room(digest, sum(missing.values()))
                promised = sum(missing.values())
                self._promised_bytes += promised
            await fetch_blobs(self._repository, self._disk, self._threads, missing, self._limits.stage_s)
            await in_thread(self._threads, nothing, place)
        finally:
            self._wanted.subtract(sizes.keys())
            self._promised_bytes -= promised
            await self._measure_disk()
        return promised

    @property
    def wanted(self) -> set[str]:
        """Blobs that are being brought, and that nothing names yet."""
        return {blob for blob, count in self._wanted.items() if count > 0}

    async def _forget(self, message: ArtefactMessage) -> int:
        """Removes an artefact's files, whole or begun, as far as no other needs them."""
        keep = self.wanted
        freed = await in_thread(self._threads, threading.Event(), lambda: self._disk.remove(message, keep))
        await self._measure_disk()
        return freed

    async def _make_disk_room(self, digest: str, need: int) -> None:
        served = self._pool.served()
        entries = tuple(
            residency.Entry(a.digest, a.message.size_bytes, a.last_used_at, self._stays(a, served), self._loss(a))
            for a in self._pool.artefacts.values()
            if a.on_disk and a.message is not None
        )
        snapshot = residency.Snapshot(self._limits.disk_bytes, self.disk_used_bytes, entries, need)
        decision = self._decide(snapshot)
        if not decision.fits:
            raise ResourceExhausted(
                "DISK_FULL",
                f"the disk tier has no room for artefact {digest}: {decision.reason}; raise --cache-size",
                retry_after_s=5.0,
                artefact=digest,
            )
        for other in decision.drop:
            await self._drop_artefact(self._pool.artefacts[other], f"room for {digest[:12]}: {decision.reason}")
            metrics.TIER_DROPPED.labels("disk").inc()

    async def drop(self, artefact: Artefact, reason: str) -> tuple[int, int]:
        """Removes an artefact from both tiers. Returns the bytes freed: host, disk."""
        running = self._staging.get(artefact.digest)
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        async with self._disk_room:
            return await self._drop_artefact(artefact, reason)

    async def _drop_artefact(self, artefact: Artefact, reason: str) -> tuple[int, int]:
        if not artefact.on_disk:
            return 0, 0
        async with self._host_room:
            host = await self._drop_image(artefact, reason)
        # From here on staging it again waits for our lock and starts anew.
        artefact.machine = artefact.machine.after(Step.REMOVED, reason, self._clock.now())
        artefact.path, artefact.states = None, ()
        assert artefact.message is not None
        freed = await self._forget(artefact.message)
        LOG.info("dropped from disk artefact=%s freed_mib=%.0f reason=%s", artefact.digest, freed / MIB, reason)
        if artefact.digest not in self._staging and not artefact.on_disk:
            self._pool.forget(artefact)
            for device in self._pool.devices.values():
                device.backend.forget(artefact.digest)
        return host, freed

    async def _measure_disk(self) -> None:
        self._disk_used_bytes = await in_thread(self._threads, threading.Event(), self._disk.used_bytes)

    def _fetched(self, artefact: Artefact, message: ArtefactMessage, reason: str) -> None:
        artefact.message, artefact.path = message, self._disk.files(artefact.digest)
        artefact.machine = artefact.machine.after(Step.FETCHED, reason, self._clock.now())

    # ---- host memory ----

    async def _image(self, artefact: Artefact) -> None:
        message = artefact.message
        assert message is not None
        if not artefact.image_bytes:
            self._imaged(artefact, "no weights: nothing to swap")
            return
        size, cancelled = round_up(artefact.image_bytes), threading.Event()
        async with self._host_room:
            await self._make_host_room(artefact, size)
            self.host_used_bytes += size
        started = self._clock.monotonic()
        try:
            files = self._disk.files(artefact.digest)
            await in_thread(
                self._threads,
                cancelled,
                lambda: self._images.build(artefact.digest, message.layout, files, cancelled),
            )
            artefact.return_s = max(self._clock.monotonic() - started, 1e-6)
            self._image_rate = size / artefact.return_s
        finally:
            # `_imaged` counts what is there; a failed build leaves nothing.
            self.host_used_bytes -= size
        self._imaged(artefact, f"copied {artefact.image_bytes} B to host memory")

    async def _make_host_room(self, artefact: Artefact, need: int) -> None:
        served = self._pool.served()
        entries = tuple(
            residency.Entry(a.digest, round_up(a.image_bytes), a.last_used_at, self._stays(a, served), self._loss(a))
            for a in self._pool.artefacts.values()
            if a.image is not None
        )
        snapshot = residency.Snapshot(self._limits.host_bytes, self.host_used_bytes, entries, need)
        decision = self._decide(snapshot)
        if not decision.fits:
            raise ResourceExhausted(
                "HOST_MEMORY_FULL",
                f"host memory has no room for artefact {artefact.digest}: {decision.reason}; raise --host-memory",
                retry_after_s=5.0,
                artefact=artefact.digest,
            )
        for digest in decision.drop:
            await self._drop_image(self._pool.artefacts[digest], f"room for {artefact.digest[:12]}: {decision.reason}")
            metrics.TIER_DROPPED.labels("host").inc()

    async def _drop_image(self, artefact: Artefact, reason: str) -> int:
        if artefact.machine.state is not Tier.HOST:
            return 0
        size = round_up(artefact.image_bytes) if artefact.image is not None else 0
        # From here on staging it again waits for our lock and builds it anew.
        artefact.machine = artefact.machine.after(Step.IMAGE_DROPPED, reason, self._clock.now())
        artefact.image = None
        # Its device copies would be left without the host copy that makes evicting them free.
        await self.clear_devices(artefact)
        await in_thread(self._threads, threading.Event(), lambda: self._images.remove(artefact.digest))
        self.host_used_bytes -= size
        if size:
            LOG.info(
                "dropped from host memory artefact=%s size_mib=%.0f reason=%s", artefact.digest, size / MIB, reason
            )
        return size

    def _imaged(self, artefact: Artefact, reason: str) -> None:
        artefact.machine = artefact.machine.after(Step.IMAGED, reason, self._clock.now())
        if artefact.image_bytes:
            artefact.image = self._images.path(artefact.digest)
            self.host_used_bytes += round_up(artefact.image_bytes)

    async def leave_host_memory(self, artefact: Artefact, reason: str) -> bool:
        """Drops an artefact's image, unless something has come to need it meanwhile; whether it did."""
        async with self._host_room:
            stays = self._stays(artefact, self._pool.served())
            if artefact.image is None or stays or artefact.digest in self._staging:
                return False
            await self._drop_image(artefact, reason)
        return True

    async def bring_back(self, digest: str) -> None:
        """Builds the image of an artefact on disk that nobody waits for. Never fails: `_stage` logs why not."""
        artefact = self._pool.artefacts.get(digest)
        if artefact is None or artefact.machine.state is not Tier.DISK:
            return
        used_at = artefact.last_used_at
        try:
            await self.stage(digest)
        except RouseError:
            return
        finally:
            # Nobody has used it: how long it was idle goes on.
            artefact.last_used_at = max(used_at, artefact.last_request_at or 0.0)

    # ---- both ----

    def copies(self, digests: Collection[str], now: float) -> tuple[tiering.Copy, ...]:
        """Those of the artefacts that have weights and are at rest, as the policy of the tiers sees them; `now` in
        monotonic seconds."""
        served = self._pool.served()
        return tuple(
            self._copy(artefact, now, self._stays(artefact, served))
            for artefact in self._pool.artefacts.values()
            if artefact.digest in digests and artefact.on_disk and artefact.image_bytes
            if artefact.digest not in self._staging
        )

    def _copy(self, artefact: Artefact, now: float, in_use: str = "") -> tiering.Copy:
        size = round_up(artefact.image_bytes) or artefact.message.size_bytes if artefact.message is not None else 0
        return tiering.Copy(
            digest=artefact.digest,
            size_bytes=max(size, 1),
            idle_s=max(0.0, now - artefact.last_used_at),
            gaps=artefact.gaps,
            return_s=artefact.return_s or size / self._image_rate,
            in_memory=artefact.machine.state is Tier.HOST,
            in_use=in_use,
        )

    def _loss(self, artefact: Artefact) -> float:
        return tiering.loss(self._copy(artefact, self._clock.monotonic()))

    def _stays(self, artefact: Artefact, served: Collection[str]) -> str:
        return self._pool.artefact_in_use(artefact, served, self._clock.monotonic())

    def _decide(self, snapshot: residency.Snapshot) -> residency.Decision:
        decision, _ = residency.decide(snapshot, residency.State(), residency.Settings(), self._clock.monotonic())
        return decision
