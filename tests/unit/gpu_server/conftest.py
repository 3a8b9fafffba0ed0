"""gpu-server's logic without its processes: real memory, a clock that the test owns, neighbours that obey it."""

from __future__ import annotations

import asyncio
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rouse_common.errors import Internal, NotFound, Unavailable
from rouse_contracts import specs
from rouse_contracts.core import SaveTapesResponse, TapeFile
from rouse_contracts.device import AttachRequest, ListRecordingsResponse
from rouse_contracts.device import Executor as ExecutorMessage
from rouse_contracts.functions import FunctionVersion
from rouse_contracts.repository import Artefact, MadeWith, State
from rouse_contracts.tapes import Answers, Input
from rouse_gpu_server.adapters.disk import Disk
from rouse_gpu_server.adapters.images import Images
from rouse_gpu_server.backends import Carry, Segment
from rouse_gpu_server.backends.fabric import Fabric
from rouse_gpu_server.backends.host import HostBackend
from rouse_gpu_server.logic import attachments as attachments_module
from rouse_gpu_server.logic.attachments import Attachments, Limits
from rouse_gpu_server.logic.dispatcher import Dispatcher
from rouse_gpu_server.logic.leasing import Leasing
from rouse_gpu_server.logic.measuring import Measuring
from rouse_gpu_server.logic.membership import Membership
from rouse_gpu_server.logic.recordings import Recordings
from rouse_gpu_server.logic.sessions import Sessions
from rouse_gpu_server.logic.shelf import Shelf
from rouse_gpu_server.logic.stager import Stager, TierLimits
from rouse_gpu_server.logic.swapper import Swapper
from rouse_gpu_server.logic.weighing import Weighing
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.state import records
from rouse_gpu_server.state.ledger import PAGE_BYTES, Ledger
from rouse_gpu_server.state.pool import Pool
from rouse_gpu_server.state.records import Artefact as ArtefactRecord
from rouse_gpu_server.state.records import Device, Lease
from rouse_gpu_server.state.waiting import WaitingList
from rouse_gpu_server.state.wakeup import Wakeup
from rouse_gpu_server.wiring import Wiring
from rouse_policy import heaviness, scheduling
from rouse_testkit.clock import ManualClock
from rouse_testkit.gpu import MadeModel

MIB = 2**20


class Instance:
    """An executor's process: what it has mapped, and whether it answers."""

    def __init__(self, message: ExecutorMessage) -> None:
        self.message = message
        self.mapped: mmap.mmap | None = None
        self.path: Path | None = None
        self.attachment = ""
        self.hung = self.dead = False
        # The device that it computes on, whether or not its lease is still held.
        self.works_on = ""

    def unmap(self) -> None:
        if self.mapped is not None:
            self.mapped.close()
        self.mapped, self.path, self.attachment, self.works_on = None, None, "", ""


class NobodyIsolated:
    """Executors that isolated versions have for themselves: there are no such versions here."""

    def start(self, device: str, version_id: str) -> CoreDouble:
        raise AssertionError(f"{version_id} is not isolated")

    async def end(self, device: str, version_id: str) -> None:
        raise AssertionError(f"{version_id} is not isolated")

    async def forget(self, version_id: str) -> None:
        """None was kept."""


class Neighbours:
    """Executors, coordinator and repository; `fail` names calls that fail once when they come next."""

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}
        self.artefacts: dict[str, Artefact] = {}
        self.blobs: dict[str, bytes] = {}
        self.fail: set[str] = set()
        self.ended: list[str] = []

    def _check(self, step: str) -> None:
        if step in self.fail:
            self.fail.remove(step)
            raise Internal("INJECTED", f"{step} fails")

    def _reach(self, address: str) -> Instance:
        instance = self.instances.get(address)
        if instance is None or instance.dead:
            raise Unavailable("UNAVAILABLE", f"nobody at {address}")
        return instance

    async def attach(self, address: str, request: AttachRequest, timeout_s: float) -> None:
        instance = self._reach(address)
        self._check("attach")
        assert not instance.attachment, "attached twice"
        if request.size_bytes:
            handle = os.open(request.segment_path, os.O_RDONLY)
            instance.mapped = mmap.mmap(handle, request.size_bytes, prot=mmap.PROT_READ)
            instance.path = Path(request.segment_path)
            os.close(handle)
        instance.attachment = request.lease_id
        # The answer may be lost although it has the memory mapped now.
        self._check("attached")

    async def detach(self, address: str, timeout_s: float) -> None:
        instance = self._reach(address)
        self._check("detach")
        if instance.hung:
            raise Internal("EXECUTOR_BUSY", "still at work")
        instance.unmap()

    async def recordings(self, address: str, timeout_s: float) -> ListRecordingsResponse:
        raise NotImplementedError

    async def forget(self, address: str) -> None:
        pass

    async def end_instance(self, instance_id: str, reason: str) -> None:
        self._check("end")
        self.ended.append(instance_id)
        self.kill(self.instances[f"unix:{instance_id}"])

    def kill(self, instance: Instance) -> None:
        instance.dead = True
        instance.unmap()

    async def get_artefact(self, digest: str) -> Artefact:
        self._check("get_artefact")
        if digest not in self.artefacts:
            raise NotFound("ARTEFACT_NOT_FOUND", digest)
        return self.artefacts[digest]

    async def get_blob(self, digest: str, offset_bytes: int, timeout_s: float) -> AsyncIterator[bytes]:
        self._check("get_blob")
        yield self.blobs[digest][offset_bytes:]

    async def list_states(self, artefact: str, made_with: MadeWith) -> Sequence[State]:
        return ()

    async def put_state(self, state: State, path: Path, timeout_s: float) -> State:
        raise NotImplementedError


class CoreDouble:
    """A device's native executor: what it has mapped."""

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours
        self.link, self.died = "unix:core", False
        self.images: dict[str, Path] = {}
        # What versions hold beside their weights.
        self.held: dict[str, int] = {}

    async def serving(self) -> None:
        """As soon as it is asked."""

    async def map_model(
        self,
        version_id: str,
        attachment_id: str,
        base: int,
        size_bytes: int,
        image: Path,
        layout: str,
        order: Path | None,
        working_bytes: int,
    ) -> None:
        self._neighbours._check("map")
        assert version_id not in self.images, "mapped twice"
        self.images[version_id] = image
        # The answer may be lost although it is mapped now.
        self._neighbours._check("mapped")

    async def unmap_model(self, version_id: str) -> None:
        self.images.pop(version_id, None)

    async def working(self) -> Mapping[str, int]:
        return {version_id: self.held.get(version_id, 0) for version_id in self.images}

    async def load_tape(self, version_id: str, tape: TapeFile) -> None:
        self._neighbours._check("load_tape")
        assert version_id in self.images

    async def open_session(
        self, session_id: str, version_id: str, socket: Path, user: int, *, candidates: Path | None, working_bytes: int
    ) -> None:
        raise NotImplementedError

    async def close_session(self, session_id: str) -> None:
        raise NotImplementedError

    async def save_tapes(self, session_id: str, folder: Path) -> SaveTapesResponse:
        raise NotImplementedError


class TapedShelf(Shelf):
    """Has one tape of every redirected version that is on the node."""

    def tapes(self, version: FunctionVersion, artefact: ArtefactRecord) -> list[tuple[str, Answers, Path]]:
        taped = specs.is_redirected(version.spec) and artefact.on_disk
        return [("t", Answers((Input("x", "FP32", (1,)),), ("y",)), Path("t"))] if taped else []


class WatchedBackend(HostBackend):
    """A host device that can be made to fail, and that sees who has mapped what it frees."""

    def __init__(self, name: str, folder: Path, neighbours: Neighbours, core: CoreDouble) -> None:
        super().__init__(name, folder)
        self._neighbours, self._core = neighbours, core
        # Called for each copy, in its thread.
        self.copying: Callable[[], object] = lambda: None

    def allocate(self, owner: str, name: str, size_bytes: int) -> Segment:
        self._neighbours._check("allocate")
        return super().allocate(owner, name, size_bytes)

    def copy(
        self,
        source: Path,
        segment: Segment,
        cancelled: threading.Event,
        progress: Callable[[int], None],
        carry: Carry | None = None,
    ) -> None:
        self._neighbours._check("copy")
        self.copying()
        super().copy(source, segment, cancelled, progress, carry)
        self._neighbours._check("copied")

    def free(self, segment: Segment) -> None:
        users = [i for i in self._neighbours.instances.values() if i.path == segment.path]
        assert not users, f"{segment.path} is freed while {users[0].message.instance_id} has it mapped"
        assert segment.path not in self._core.images.values(), f"{segment.path} is freed while the executor has it"
        super().free(segment)


class Bench:
    """Everything but the gRPC server, put together as the app does. Enter it within the running loop."""

    def __init__(
        self, capacities: dict[str, int], *, max_waiting: int = 100, wiring: Wiring | None = None, **policy: Any
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rouse-test-", dir="/dev/shm"))
        self.clock, self.neighbours, self.wakeup = ManualClock(), Neighbours(), Wakeup()
        self.cores = {name: CoreDouble(self.neighbours) for name in capacities}
        # One thread each: when a call put in last has run, all have.
        self._threads = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        devices = {
            name: Device(name, "host", Ledger(name, pages * PAGE_BYTES), self._backend(name))
            for name, pages in capacities.items()
        }
        self.pool = Pool(devices, WaitingList(max_waiting))
        self._settings = scheduling.Settings(**policy)
        self._wiring = wiring or Wiring()
        self._stack = AsyncExitStack()
        self.models: dict[str, MadeModel] = {}

    def _backend(self, name: str) -> WatchedBackend:
        return WatchedBackend(name, self.folder / name, self.neighbours, self.cores[name])

    async def __aenter__(self) -> Bench:
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        self.background = background = Background(group)
        pool, clock, wakeup, outside = self.pool, self.clock, self.wakeup, self.neighbours
        limits = TierLimits(MIB, 4 * MIB, 1000.0)
        disk, images = Disk(self.folder / "cache"), Images(self.folder / "host")
        self.stager = Stager(pool, outside, disk, images, background, wakeup, clock, self._threads[1], limits)
        await self.stager.recover()
        shelf = TapedShelf(outside, disk, self.stager, self._threads[1], "host", "2.13.0", lambda _: ())
        sessions = Sessions(self.folder, shelf, background)
        sessions.start(self.cores, NobodyIsolated(), list(self.cores))
        self.attachments = Attachments(
            pool, outside, outside, background, wakeup, clock, Limits(1.0, 1.0, 1), sessions,
            Measuring(pool, sessions, background, wakeup, pause_s=0.0),
        )  # fmt: skip
        self.swapper = Swapper(
            pool, self.attachments, self.stager, background, wakeup, clock, self._threads[0],
            Fabric(self._wiring, clock.monotonic),
        )  # fmt: skip
        self.stager.clear_devices = self.swapper.clear_artefact
        self.dispatcher = Dispatcher(
            pool, self.swapper, self.attachments, background, wakeup, clock, self._settings, 1.0
        )
        recordings = Recordings(pool, outside, sessions, shelf, background, clock, self.folder)
        weighing = Weighing(heaviness.Settings())
        self.leasing = Leasing(pool, self.dispatcher, wakeup, clock, recordings, sessions.answers, weighing)
        self.membership = Membership(
            pool, self.attachments, self.stager, shelf, sessions, self.swapper, self.dispatcher, background, wakeup,
            clock, settle_limit_s=5.0, stage_hold_s=0.0,
        )  # fmt: skip
        background.start(self._dispatch(), "dispatcher")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.background.stop()
        await self._stack.aclose()
        for threads in self._threads:
            threads.shutdown()
        for instance in self.neighbours.instances.values():
            instance.unmap()
        shutil.rmtree(self.folder)

    async def _dispatch(self) -> None:
        # As Dispatcher.run, but time passes only when the test says so.
        while True:
            await self.wakeup.for_dispatch()
            self.dispatcher.step()

    def make(self, model: MadeModel) -> None:
        """Gives the repository a model."""
        self.models[model.version.version_id] = model
        self.neighbours.artefacts[model.artefact.digest] = model.artefact
        self.neighbours.blobs.update(model.blobs)

    def start_instance(self, version_id: str) -> Instance:
        name = f"i{len(self.neighbours.instances)}"
        message = ExecutorMessage(
            instance_id=name, version=self.models[version_id].version, address=f"unix:{name}", pid=2**22 + 1
        )
        instance = self.neighbours.instances[message.address] = Instance(message)
        return instance

    def sync(self) -> None:
        """The coordinator names those that are alive."""
        self.membership.sync([i.message for i in self.neighbours.instances.values() if not i.dead])

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.wakeup.kick()

    async def quiesce(self) -> None:
        """Lets everything happen that can happen without the test doing something."""
        loop = asyncio.get_running_loop()
        for _ in range(25):
            for threads in self._threads:
                await loop.run_in_executor(threads, int)
            for _ in range(10):
                await asyncio.sleep(0)

    @property
    def at_rest(self) -> bool:
        """Whether no device's memory is changing."""
        return not self.swapper._loading and not self.swapper._leaving

    def check_memory(self) -> None:
        """Records agree with each other, and at rest with the files that are there."""
        self.pool.check()
        if self.at_rest:
            for device in self.pool.devices.values():
                segments = [r.segment for r in device.residents.values() if r.segment is not None]
                in_core = sum(segment.size_bytes for segment in segments if segment.in_core)
                assert device.backend.used_bytes() + in_core == device.ledger.mapped_bytes

    def check_lease(self, lease_id: str, instance_id: str) -> None:
        """Whoever holds a lease can execute: the instance is attached to its own model's bytes."""
        instance = self.neighbours.instances[f"unix:{instance_id}"]
        if instance.dead:
            return
        assert lease_id.startswith(f"{instance.attachment}/")
        image = self.models[instance.message.version.version_id].image
        assert (instance.mapped[:] if instance.mapped is not None else b"") == image

    def check_tape_lease(self, lease: Lease) -> None:
        """Its device can answer by tapes: the executor has the model's own bytes, or has died since."""
        core = self.cores[lease.device_name]
        image = core.images.get(lease.model.version_id)
        assert image is not None or core.died
        if image is not None:
            made = self.models[lease.model.version_id]
            assert image.read_bytes()[: len(made.image)] == made.image

    def kill_core(self, device: str) -> None:
        """Its executor dies, and a new one comes at once."""
        core = self.cores[device]
        core.images.clear()
        core.died = True
        self.attachments.core_lost(device, "killed")


@pytest.fixture
def make_bench(monkeypatch: pytest.MonkeyPatch) -> type[Bench]:
    monkeypatch.setattr(attachments_module, "LOOK_AGAIN_S", 0.001)
    # Devices have a few pages here.
    monkeypatch.setattr(records, "PIECE_BYTES", PAGE_BYTES)
    return Bench
