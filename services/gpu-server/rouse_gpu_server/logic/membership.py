"""Which executors there are, which versions they run, and how both leave again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from rouse_common.clock import Clock
from rouse_common.errors import RouseError, Unavailable
from rouse_contracts import specs
from rouse_contracts.device import Executor as ExecutorMessage
from rouse_contracts.functions import FunctionVersion
from rouse_gpu_server.adapters import processes
from rouse_gpu_server.logic.attachments import Attachments
from rouse_gpu_server.logic.dispatcher import Dispatcher, no_executor
from rouse_gpu_server.logic.leasing import misfit
from rouse_gpu_server.logic.sessions import Sessions
from rouse_gpu_server.logic.shelf import Shelf
from rouse_gpu_server.logic.stager import Stager
from rouse_gpu_server.logic.swapper import Swapper
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.state.pool import Pool
from rouse_gpu_server.state.records import MAX_REFUSALS, Artefact, Executor, Model, Phase
from rouse_gpu_server.state.residency import Tier
from rouse_gpu_server.state.wakeup import Wakeup

LOG = logging.getLogger(__name__)


class Membership:
    """Keeps the executors and the versions of the node."""

    def __init__(
        self,
        pool: Pool,
        attachments: Attachments,
        stager: Stager,
        shelf: Shelf,
        sessions: Sessions,
        swapper: Swapper,
        dispatcher: Dispatcher,
        background: Background,
        wakeup: Wakeup,
        clock: Clock,
        *,
        settle_limit_s: float,
        stage_hold_s: float,
    ) -> None:
        self._pool, self._attachments, self._stager, self._swapper = pool, attachments, stager, swapper
        self._dispatcher, self._background, self._wakeup, self._clock = dispatcher, background, wakeup, clock
        self._shelf, self._sessions = shelf, sessions
        self._settle_limit_s, self._hold_s = settle_limit_s, stage_hold_s
        self._dropping: dict[str, asyncio.Task[tuple[int, int, int]]] = {}

    # ---- versions ----

    async def stage_version(self, version: FunctionVersion) -> Artefact:
        """Brings a version to host memory and keeps its place until an instance appears.

        Raises FailedPrecondition MODEL_TOO_LARGE and what `Stager.stage` raises.
        """
        model = self._register(version)
        if model.dropping:
            text = f"version {version.version_id} of function {model.function} is being dropped; stage it afterwards"
            raise Unavailable("VERSION_DROPPING", text, retry_after_s=0.5, function=model.function)
        self._check_fits(model)
        model.artefact.held_until = self._clock.monotonic() + self._hold_s
        artefact = await self._stager.stage(version.artefact_digest)
        self._check_fits(model)
        await self._shelf.refresh(version, artefact)
        artefact.held_until = self._clock.monotonic() + self._hold_s
        return artefact

    def recall(self, versions: Iterable[FunctionVersion]) -> None:
        """Versions of an earlier life that tapes answer: they are known before an instance of theirs is started."""
        for version in versions:
            self._register(version)

    def states_path(self, artefact: Artefact) -> str:
        """Folder of the artefact's materialised states; empty where it has none on this node."""
        return str(self._shelf.path(artefact) or "")

    def segment_folders(self, version: FunctionVersion, artefact: Artefact) -> list[str]:
        """Where the artefact's copies on devices lie, on each; and of a redirected function, where its sessions'
        sockets come to lie."""
        folders = [str(device.backend.folder(artefact.digest)) for device in self._pool.devices.values()]
        if specs.is_redirected(version.spec) and self._sessions.enabled:
            folders.append(str(self._sessions.folder(version.version_id)))
        return folders

    def _register(self, version: FunctionVersion) -> Model:
        model = self._pool.models.get(version.version_id)
        if model is None:
            model = Model(version, self._stager.artefact(version.artefact_digest))
            self._pool.models[version.version_id] = model
        return model

    def _check_fits(self, model: Model) -> None:
        if (error := misfit(self._pool, model)) is not None:
            raise error

    async def drop_version(self, version_id: str, digest: str) -> tuple[int, int, int]:
        """Gives back all memory of a version, after what executes. Returns the bytes: device, host, disk.

        Goes on when the caller stops waiting; concurrent calls share it.
        """
        task = self._dropping.get(version_id)
        if task is None:
            task = self._background.start(self._drop(version_id, digest), f"drop {version_id}")
            self._dropping[version_id] = task
            task.add_done_callback(lambda _: self._dropping.pop(version_id, None))
        return await asyncio.shield(task)

    async def _drop(self, version_id: str, digest: str) -> tuple[int, int, int]:
        model = self._pool.models.get(version_id)
        device = host = disk = 0
        if model is not None:
            model.dropping = True
            for waiter in self._pool.waiting.of(version_id):
                self._pool.waiting.remove(waiter)
                self._dispatcher.fail(waiter, no_executor(version_id))
            device = await self._swapper.clear(model, "the version is dropped")
            await self._sessions.forget(version_id)
            digest = model.artefact.digest
            del self._pool.models[version_id]
        artefact = self._pool.artefacts.get(digest)
        if artefact is not None and not self._pool.models_of(digest):
            host, disk = await self._stager.drop(artefact, "its last version is dropped")
        elif artefact is not None and model is not None:
            await self._shelf.dropped(model.version, artefact)
        LOG.info(
            "dropped function=%s version=%s device_bytes=%d host_bytes=%d disk_bytes=%d",
            model.function if model is not None else "unknown", version_id, device, host, disk,
        )  # fmt: skip
        return device, host, disk

    # ---- executors ----

    def sync(self, executors: Iterable[ExecutorMessage]) -> None:
        """Takes over the complete list of executors; whatever is not named is gone."""
        named = {message.instance_id: message for message in executors}
        for instance_id, executor in list(self._pool.executors.items()):
            if instance_id not in named:
                self._attachments.lost(executor, "the coordinator no longer names it")
                # A lease that is just being granted ends by itself: its attachment fails.
                del self._pool.executors[instance_id]
        fresh = [self._appear(message) for iid, message in named.items() if iid not in self._pool.executors]
        for executor in self._pool.executors.values():
            self._look_after(executor)
        if not self._pool.synced:
            self._pool.synced = True
            self._background.start(self._settle_first(fresh), "settle the first executors")
            self._check_waiting()
        self._wakeup.kick()

    def _appear(self, message: ExecutorMessage) -> Executor:
        executor = Executor(
            message.instance_id,
            message.version.version_id,
            message.address,
            message.pid,
            started_at=processes.start_time(message.pid),
        )
        self._pool.executors[executor.instance_id] = executor
        self._register(message.version)
        LOG.info(
            "executor appeared function=%s instance=%s version=%s pid=%d",
            message.version.spec.name, executor.instance_id, executor.version_id, executor.pid,
        )  # fmt: skip
        # It may still hold memory of our earlier life.
        self._attachments.settle(executor)
        return executor

    def _look_after(self, executor: Executor) -> None:
        """What a healthy executor needs: staged weights; an unusable one is seen to."""
        if not executor.alive:
            return
        if executor.refusals >= MAX_REFUSALS and not executor.condemned and executor.phase is Phase.DETACHED:
            self._attachments.settle(executor)
        model = self._pool.models.get(executor.version_id)
        if model is not None and not model.dropping and not self._staged(model):
            self._background.start(self._stage_for(model), f"stage for {executor.instance_id}")

    def _staged(self, model: Model) -> bool:
        return model.artefact.machine.state is Tier.HOST or self._stager.is_staging(model.artefact.digest)

    async def _stage_for(self, model: Model) -> None:
        try:
            await self._stager.stage(model.artefact.digest)
            self._check_fits(model)
        except RouseError as error:
            # Tried again when the coordinator next names the executor; who waits now hears why not.
            for waiter in self._pool.waiting.of(model.version_id):
                self._pool.waiting.remove(waiter)
                self._dispatcher.fail(waiter, error)

    async def _settle_first(self, executors: list[Executor]) -> None:
        """Nothing is granted before the executors of an earlier life are known to be idle, or had their time."""
        tasks = [self._attachments.settle(executor) for executor in executors if executor.alive]
        if tasks:
            await asyncio.wait(tasks, timeout=self._settle_limit_s)
        self._dispatcher.settled = True
        LOG.info("took over executors=%d", len(executors))
        self._wakeup.kick()

    def _check_waiting(self) -> None:
        """Requests that came before the first list of executors are checked now as later ones are at once."""
        for version_id in self._pool.waiting.versions():
            model = self._pool.models.get(version_id)
            if model is None or (error := misfit(self._pool, model)) is None:
                continue
            for waiter in self._pool.waiting.of(version_id):
                self._pool.waiting.remove(waiter)
                self._dispatcher.fail(waiter, error)
