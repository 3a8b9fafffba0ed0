"""The native executors of the node's devices (rouse_native), as gpu-server uses them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rouse_common.config import ConfigError
from rouse_common.link import Links
from rouse_contracts import core
from rouse_gpu_server.logic.work import Background
from rouse_native.executor import ExecutorProcess, ExecutorSettings

START_S = 30.0
SOCKETS = ".x"


class Core(Protocol):
    """One device's executor. All raise RouseError.

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
    ) -> None: ...

    async def unmap_model(self, version_id: str) -> None: ...

    async def open_session(
        self, session_id: str, version_id: str, socket: Path, user: int, *, candidates: Path | None
    ) -> None: ...

    async def close_session(self, session_id: str) -> None: ...

    async def save_tapes(self, session_id: str, folder: Path) -> core.SaveTapesResponse: ...

    async def load_tape(self, version_id: str, tape: core.TapeFile) -> None: ...


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
    ) -> None:
        await self._process.client.map_model(
            version_id, attachment_id,
            base=base, size_bytes=size_bytes, image=image, layout=layout, order=order, timeout_s=self._limit_s,
        )  # fmt: skip

    async def unmap_model(self, version_id: str) -> None:
        await self._process.client.unmap_model(version_id, self._limit_s)

    async def open_session(
        self, session_id: str, version_id: str, socket: Path, user: int, *, candidates: Path | None
    ) -> None:
        await self._process.client.open_session(
            session_id, socket, self._limit_s,
            version_id=version_id, peer_user=user, record=candidates is not None, candidates=candidates,
        )  # fmt: skip

    async def close_session(self, session_id: str) -> None:
        await self._process.client.close_session(session_id, self._limit_s)

    async def save_tapes(self, session_id: str, folder: Path) -> core.SaveTapesResponse:
        return await self._process.client.save_tapes(session_id, folder, self._limit_s)

    async def load_tape(self, version_id: str, tape: core.TapeFile) -> None:
        await self._process.client.load_tapes(version_id, [tape], self._limit_s)


class OwnCores:
    """Executors that isolated versions have for themselves, each as long as it is wanted.

    Args:
        shared: settings of the devices' executors, by name.
        limit_s: how long a call may take.
        on_lost: called with device, version and reason when one ended without being asked to; it is started again.
    """

    def __init__(
        self,
        shared: Mapping[str, ExecutorSettings],
        links: Links,
        limit_s: float,
        background: Background,
        on_lost: Callable[[str, str, str], None],
    ) -> None:
        self._shared, self._links, self._limit_s = shared, links, limit_s
        self._background, self._on_lost = background, on_lost
        self._running: dict[tuple[str, str], tuple[asyncio.Event, asyncio.Task[None]]] = {}

    def start(self, device: str, version_id: str) -> Core:
        """An executor of the version on the device, which begins to start."""
        shared = self._shared[device]
        folder = shared.folder / f"own-{hashlib.sha256(version_id.encode()).hexdigest()[:16]}"
        folder.mkdir(mode=0o711, exist_ok=True)
        process = ExecutorProcess(
            replace(shared, folder=folder),
            self._links,
            on_lost=lambda reason: self._on_lost(device, version_id, reason),
        )
        stop = asyncio.Event()
        task = self._background.start(_until(stop, process), f"executor of {version_id} on {device}")
        self._running[device, version_id] = stop, task
        return NativeCore(process, self._limit_s)

    async def end(self, device: str, version_id: str) -> None:
        """Stops it and waits until it is gone."""
        stop, task = self._running.pop((device, version_id))
        stop.set()
        await asyncio.wait([task])


async def _until(stop: asyncio.Event, process: ExecutorProcess) -> None:
    async with process.running():
        await stop.wait()


def settings(name: str, number: int, memory: Path, capacity_bytes: int, threads: int) -> ExecutorSettings:
    """Of the executor of a host device."""
    folder = memory / SOCKETS
    folder.mkdir(mode=0o711, exist_ok=True)
    flags: Mapping[str, int | str] = {"capacity-mib": max(1, capacity_bytes >> 20), "threads": threads}
    return ExecutorSettings(device=f"host:{number}", folder=folder, flags=flags)


def check_built() -> None:
    """Raises ConfigError where there is no executor to start."""
    from rouse_native import executor_program

    try:
        executor_program()
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
