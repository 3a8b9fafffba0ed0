"""The native executors of the node's devices (rouse_native), as gpu-server uses them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rouse_common.config import ConfigError
from rouse_common.errors import RouseError
from rouse_common.link import Links
from rouse_contracts import core
from rouse_gpu_server.config import DeviceSpec
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.state.ledger import PIECE_BYTES, round_up
from rouse_native.executor import ExecutorProcess, ExecutorSettings, SessionLimits

LOG = logging.getLogger(__name__)
START_S = 30.0
SOCKETS = ".x"


class Core(Protocol):
    """One device's executor. All raise RouseError.

    `working_bytes` is what a session, or replays, may hold beside the weights; 0: as much as the executor allows.

    Attributes:
        link: its address, unix:PATH.
    """

    link: str

    async def serving(self) -> None: ...

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
    ) -> None: ...

    async def unmap_model(self, version_id: str) -> None: ...

    async def open_session(
        self, session_id: str, version_id: str, socket: Path, user: int, *, candidates: Path | None, working_bytes: int
    ) -> None: ...

    async def close_session(self, session_id: str) -> None: ...

    async def save_tapes(self, session_id: str, folder: Path) -> core.SaveTapesResponse: ...

    async def load_tape(self, version_id: str, tape: core.TapeFile) -> None: ...

    async def working(self) -> Mapping[str, int]: ...


class NativeCore:
    """A `rouse-executor` that is kept running."""

    def __init__(self, process: ExecutorProcess, limit_s: float) -> None:
        self._process, self._limit_s = process, limit_s
        self.link = process.client.address

    async def serving(self) -> None:
        """Waits until it answers: it takes a while after its start, and after the node's."""
        await self._process.serving(START_S)

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
        await self._process.client.map_model(
            version_id, attachment_id,
            base=base, size_bytes=size_bytes, image=image, layout=layout, order=order, timeout_s=self._limit_s,
            working_bytes=working_bytes,
        )  # fmt: skip

    async def unmap_model(self, version_id: str) -> None:
        await self._process.client.unmap_model(version_id, self._limit_s)

    async def open_session(
        self, session_id: str, version_id: str, socket: Path, user: int, *, candidates: Path | None, working_bytes: int
    ) -> None:
        await self._process.client.open_session(
            session_id, socket, self._limit_s,
            version_id=version_id, peer_user=user, record=candidates is not None, candidates=candidates,
            limits=SessionLimits(scratch_bytes=working_bytes),
        )  # fmt: skip

    async def close_session(self, session_id: str) -> None:
        await self._process.client.close_session(session_id, self._limit_s)

    async def save_tapes(self, session_id: str, folder: Path) -> core.SaveTapesResponse:
        return await self._process.client.save_tapes(session_id, folder, self._limit_s)

    async def load_tape(self, version_id: str, tape: core.TapeFile) -> None:
        await self._process.client.load_tapes(version_id, [tape], self._limit_s)

    async def working(self) -> Mapping[str, int]:
        """The most that each version held beside its weights, in bytes."""
        return await self._process.client.most_working_bytes(self._limit_s)


@dataclass(frozen=True)
class _Running:
    core: NativeCore
    stop: asyncio.Event
    task: asyncio.Task[None]


class OwnCores:
    """Executors that single versions have for themselves.

    One whose model has left the device may be kept without it, where a process takes far longer to start than a model
    to be mapped. It serves no other version.

    Args:
        settings: of the devices' executors, by name.
        limit_s: how long a call may take.
        kept: how many stay so on each device, those that were used last.
        on_lost: called with device, version and reason when one ended without being asked to; it is started again.
    """

    def __init__(
        self,
        settings: Mapping[str, ExecutorSettings],
        links: Links,
        limit_s: float,
        kept: int,
        background: Background,
        on_lost: Callable[[str, str, str], None],
    ) -> None:
        self._settings, self._links, self._limit_s, self._most_kept = settings, links, limit_s, kept
        self._background, self._on_lost = background, on_lost
        self._used: dict[tuple[str, str], _Running] = {}
        self._kept: dict[str, OrderedDict[str, _Running]] = {device: OrderedDict() for device in settings}

    def start(self, device: str, version_id: str) -> Core:
        """An executor of the version on the device: one that was kept, or one that begins to start."""
        running = self._kept[device].pop(version_id, None)
        if running is None:
            running = self._start(device, version_id)
        self._used[device, version_id] = running
        return running.core

    def _start(self, device: str, version_id: str) -> _Running:
        settings = self._settings[device]
        folder = settings.folder / f"own-{hashlib.sha256(version_id.encode()).hexdigest()[:16]}"
        folder.mkdir(mode=0o711, exist_ok=True)
        process = ExecutorProcess(
            replace(settings, folder=folder),
            self._links,
            on_lost=lambda reason: self._on_lost(device, version_id, reason),
        )
        stop = asyncio.Event()
        task = self._background.start(_until(stop, process), f"executor of {version_id} on {device}")
        return _Running(NativeCore(process, self._limit_s), stop, task)

    async def end(self, device: str, version_id: str) -> None:
        """Takes the version's model from it; it is kept, or stopped and gone."""
        ending, kept = self._used.pop((device, version_id)), self._kept[device]
        if self._most_kept:
            try:
                await ending.core.unmap_model(version_id)
            except RouseError as error:
                LOG.warning("executor not kept version=%s device=%s reason=%s", version_id, device, error)
            else:
                kept[version_id] = ending
                if len(kept) <= self._most_kept:
                    return
                _, ending = kept.popitem(last=False)
        await _stopped(ending)

    async def forget(self, version_id: str) -> None:
        """Ends what was kept of a version, on every device."""
        for kept in self._kept.values():
            if (running := kept.pop(version_id, None)) is not None:
                await _stopped(running)


async def _stopped(running: _Running) -> None:
    running.stop.set()
    await asyncio.wait([running.task])


async def _until(stop: asyncio.Event, process: ExecutorProcess) -> None:
    async with process.running():
        await stop.wait()


def settings(
    spec: DeviceSpec, number: int, memory: Path, threads: int, program: Path, rate: float | None
) -> ExecutorSettings:
    """Of the executors of a device.

    Args:
        number: its place among the node's devices, which for CUDA is the driver's number of it.
        rate: bytes a second of its link to the host; None: it is not limited.
    """
    folder = memory / SOCKETS
    folder.mkdir(mode=0o711, exist_ok=True)
    flags = {"capacity-mib": round_up(spec.capacity_bytes, PIECE_BYTES) >> 20, "threads": threads}
    if rate is not None:
        flags["link-mib-s"] = max(1, int(rate) >> 20)
    return ExecutorSettings(device=f"{spec.kind}:{number}", folder=folder, flags=flags, program=program)


def program(path: str) -> Path:
    """The executor that is started: the one that is named, or else the one that was built here. Raises ConfigError
    where there is none."""
    from rouse_native import executor_program

    if path and not os.access(path, os.X_OK):
        raise ConfigError(f"--executor-program={path}: there is no such program")
    try:
        return Path(path) if path else executor_program()
    except FileNotFoundError as error:
        raise ConfigError(f"--executors: {error}; leave the setting out for plain execution") from None


@contextlib.asynccontextmanager
async def running(
    all_settings: Mapping[str, ExecutorSettings], links: Links, limit_s: float, on_lost: Callable[[str, str], None]
) -> AsyncIterator[dict[str, Core]]:
    """Keeps an executor running for each device, by name.

    Args:
        on_lost: called with device and reason when one ended without being asked to.
    """
    async with contextlib.AsyncExitStack() as stack:
        cores: dict[str, Core] = {}
        for name, one in all_settings.items():
            process = ExecutorProcess(one, links, on_lost=lambda reason, name=name: on_lost(name, reason))  # type: ignore[misc]
            cores[name] = NativeCore(await stack.enter_async_context(process.running()), limit_s)
        yield cores
