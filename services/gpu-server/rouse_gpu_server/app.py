"""gpu-server put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rouse_common.clock import SystemClock
from rouse_common.decision_log import DecisionLog
from rouse_common.errors import Unavailable
from rouse_common.link import Links, LinkServer
from rouse_common.rpc import Channels, RpcServer
from rouse_contracts import device as contract
from rouse_gpu_server.adapters import cores, cuda_driver, memory_dir
from rouse_gpu_server.adapters.coordinator import CoordinatorClient
from rouse_gpu_server.adapters.disk import Disk
from rouse_gpu_server.adapters.executors import ExecutorClient
from rouse_gpu_server.adapters.images import Images
from rouse_gpu_server.adapters.repository import RepositoryClient
from rouse_gpu_server.backends.cuda import CudaBackend
from rouse_gpu_server.backends.fabric import Fabric
from rouse_gpu_server.backends.host import HostBackend
from rouse_gpu_server.config import GpuServerConfig
from rouse_gpu_server.logic.attachments import Attachments, Limits
from rouse_gpu_server.logic.describe import describe, export_gauges
from rouse_gpu_server.logic.dispatcher import Dispatcher
from rouse_gpu_server.logic.leasing import Leasing
from rouse_gpu_server.logic.measuring import Measuring
from rouse_gpu_server.logic.membership import Membership
from rouse_gpu_server.logic.recordings import Recordings
from rouse_gpu_server.logic.sessions import Sessions, records
from rouse_gpu_server.logic.shelf import Shelf, torch_version
from rouse_gpu_server.logic.stager import Stager, TierLimits
from rouse_gpu_server.logic.swapper import Swapper
from rouse_gpu_server.logic.tiering import Tiering
from rouse_gpu_server.logic.weighing import Weighing
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.service import DeviceService, LeaseLink
from rouse_gpu_server.state.ledger import PAGE_BYTES, Ledger
from rouse_gpu_server.state.pool import Pool
from rouse_gpu_server.state.records import CUDA, HOST, Device
from rouse_gpu_server.state.waiting import WaitingList
from rouse_gpu_server.state.wakeup import Wakeup

LOG = logging.getLogger(__name__)
# Swaps have threads of their own: hashing a download never stands in their way.
SWAP_THREADS_PER_DEVICE = 2
STAGE_THREADS = 4


class GpuServer:
    """The service."""

    def __init__(self, config: GpuServerConfig) -> None:
        self._config = config
        self._memory, self._cache = Path(config.memory_dir), Path(config.cache_dir)
        self._log: DecisionLog | None = None

    async def run(self, ready: Callable[[str], Awaitable[None]], stopping: asyncio.Event) -> None:
        locks = await asyncio.to_thread(self._lock)
        try:
            if self._config.decision_log:
                self._log = DecisionLog(Path(self._config.decision_log))
            await self._run(ready, stopping)
        finally:
            if self._log is not None:
                self._log.close()
            for handle in locks:
                os.close(handle)

    def _lock(self) -> list[int]:
        return [memory_dir.lock(self._memory, "--memory-dir"), memory_dir.lock(self._cache, "--cache-dir")]

    def _devices(self) -> dict[str, Device]:
        """The devices, empty: what an earlier life left on them is freed."""
        names = {spec.name for spec in self._config.devices}
        for left in self._memory.rglob("*.seg"):
            device = left.relative_to(self._memory).parts[0]
            if device not in names:
                LOG.info("device=%s is no longer configured: freed %s", device, left.name)
                left.unlink()
        devices = {}
        for spec in self._config.devices:
            made = HostBackend if spec.kind == HOST else CudaBackend
            backend = made(spec.name, self._memory / spec.name)
            freed = backend.purge()
            capacity = spec.capacity_bytes // PAGE_BYTES * PAGE_BYTES
            devices[spec.name] = Device(spec.name, spec.kind, Ledger(spec.name, capacity), backend)
            LOG.info(
                "device=%s kind=%s capacity_mib=%d purged_mib=%d", spec.name, spec.kind, capacity >> 20, freed >> 20
            )
        return devices

    def _images(self) -> Images:
        """The host tier's folder, once it is known that devices and host copies fit beside each other."""
        images = Images(self._memory / "host")
        sizes = {spec.name: spec.capacity_bytes for spec in self._config.devices if spec.kind == HOST}
        memory_dir.check_room(self._memory, sizes, self._config.host_bytes, images.used_bytes())
        return images

    async def _run(self, ready: Callable[[str], Awaitable[None]], stopping: asyncio.Event) -> None:
        config = self._config
        pool = Pool(await asyncio.to_thread(self._devices), WaitingList(config.max_waiting))
        images = await asyncio.to_thread(self._images)
        channels = Channels(config.max_message_mib << 20, config.tls)
        swap_threads = ThreadPoolExecutor(SWAP_THREADS_PER_DEVICE * len(pool.devices), "swap")
        stage_threads = ThreadPoolExecutor(STAGE_THREADS, "stage")
        try:
            async with asyncio.TaskGroup() as group:
                background = Background(group)
                await self._serve(pool, images, channels, background, (swap_threads, stage_threads), ready, stopping)
        finally:
            await channels.close()
            for threads in (swap_threads, stage_threads):
                threads.shutdown(wait=True)
            for device in pool.devices.values():
                device.backend.purge()

    async def _serve(
        self,
        pool: Pool,
        images: Images,
        channels: Channels,
        background: Background,
        threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor],
        ready: Callable[[str], Awaitable[None]],
        stopping: asyncio.Event,
    ) -> None:
        config, clock, wakeup = self._config, SystemClock(), Wakeup()
        repository = RepositoryClient(channels, config.model_repository)
        coordinator = CoordinatorClient(channels, config.coordinator)
        limits = TierLimits(config.host_bytes, config.cache_bytes, config.stage_limit_s)
        disk = Disk(self._cache)
        stager = Stager(pool, repository, disk, images, background, wakeup, clock, threads[1], limits)
        await stager.recover()
        kind = next(device.kind for device in pool.devices.values())
        shelf = Shelf(
            repository, disk, stager, threads[1], kind, torch_version(),
            lambda artefact: [m.version for m in pool.models_of(artefact.digest) if records(m.version.spec)],
        )  # fmt: skip
        sessions = Sessions(self._memory, shelf, background)
        attachments = Attachments(
            pool, ExecutorClient(channels), coordinator, background, wakeup, clock,
            Limits(config.attach_limit_s, config.detach_limit_s, config.default_threads), sessions,
            Measuring(pool, sessions, background, wakeup),
        )  # fmt: skip
        swapper = Swapper(
            pool, attachments, stager, background, wakeup, clock, threads[0], Fabric(config.wiring, clock.monotonic)
        )  # fmt: skip
        stager.clear_devices = swapper.clear_artefact
        dispatcher = Dispatcher(
            pool, swapper, attachments, background, wakeup, clock, config.policy, config.lease_margin_s,
            self._log.write if self._log is not None else None, config.seed,
        )  # fmt: skip
        recordings = Recordings(
            pool, ExecutorClient(channels), sessions, shelf, background, clock, self._memory
        )  # fmt: skip
        weighing = Weighing(config.heaviness)
        leasing = Leasing(pool, dispatcher, wakeup, clock, recordings, sessions.answers, weighing)
        membership = Membership(
            pool, attachments, stager, shelf, sessions, swapper, dispatcher, background, wakeup, clock,
            settle_limit_s=config.detach_limit_s, stage_hold_s=config.stage_hold_s,
        )  # fmt: skip
        if config.executors:
            membership.recall(await shelf.recover(list(pool.artefacts.values())))
        export_gauges(pool)

        def shown() -> contract.DescribeDevicesResponse:
            return describe(
                pool,
                config.node_id,
                lambda model: shelf.tape_count(model.version, model.artefact),
                host_used=stager.host_used_bytes,
                host_capacity=config.host_bytes,
                disk_used=stager.disk_used_bytes,
            )

        server = RpcServer(config.listen, max_message_bytes=config.max_message_mib << 20, tls=config.tls)
        servicer = DeviceService(leasing, membership, shown)
        server.add(contract.add_DeviceServiceServicer_to_server, servicer, contract.DESCRIPTOR)
        context = config.tls.server_context() if config.tls is not None else None
        link = LinkServer(config.link_listen, max_message_bytes=config.max_message_mib << 20, tls=context)
        LeaseLink(leasing, sessions.access).add_to(link)
        background.start(dispatcher.run(), "dispatcher")
        tiers = Tiering(
            pool, stager, background, clock, config.tiering, config.host_bytes, config.host_look_s,
            self._log.write if self._log is not None else None,
        )  # fmt: skip
        background.start(tiers.run(), "tiers")
        async with self._cores(sessions, background, attachments.core_lost):
            await link.start()
            await server.start()
            await server.set_serving(True)
            await ready(server.address)
            await self._until(stopping, leasing, server, link)
            background.stop()

    @contextlib.asynccontextmanager
    async def _cores(
        self, sessions: Sessions, background: Background, on_lost: Callable[[str, str, str], None]
    ) -> AsyncIterator[None]:
        """The native executors of the devices, which sessions are told of; none unless they are asked for.

        Args:
            on_lost: called with device, reason and, where it was an isolated version's own, the version.
        """
        config = self._config
        if not config.executors:
            yield
            return
        program = cores.program(config.executor_program)
        if not config.executor_program:
            cuda_driver.check([spec.name for spec in config.devices if spec.kind == CUDA])
        settings = {
            spec.name: cores.settings(
                spec, number, self._memory, config.default_threads, program, config.wiring.device_rates.get(spec.name)
            )
            for number, spec in enumerate(config.devices)
        }
        links = Links(config.max_message_mib << 20)
        try:
            shared = {spec.name: settings[spec.name] for spec in config.devices if spec.kind == HOST}
            # On CUDA every version has an executor of its own.
            own = cores.OwnCores(
                settings, links, config.attach_limit_s, 0 if shared else config.executors_kept, background,
                lambda device, version_id, reason: on_lost(device, reason, version_id),
            )  # fmt: skip

            def shared_lost(device: str, reason: str) -> None:
                on_lost(device, reason, "")

            async with cores.running(shared, links, config.attach_limit_s, shared_lost) as started:
                sessions.start(started, own, [spec.name for spec in config.devices])
                yield
        finally:
            await links.close()

    async def _until(self, stopping: asyncio.Event, leasing: Leasing, server: RpcServer, link: LinkServer) -> None:
        config = self._config
        try:
            await stopping.wait()
        finally:
            leasing.stop(Unavailable("NODE_STOPPING", "gpu-server of this node is stopping; route elsewhere"))
            await server.set_serving(False)
            await link.stop(config.drain_s)
            await server.stop(config.drain_s)
