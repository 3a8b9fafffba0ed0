"""Life of one instance: started, staged, loaded, watched, ended."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rouse_common.clock import Clock
from rouse_common.errors import RouseError
from rouse_contracts.coordination import GetAssignmentResponse, ReportLoadedRequest
from rouse_contracts.device import StageVersionResponse
from rouse_contracts.functions import FunctionVersion
from rouse_coordinator import metrics
from rouse_coordinator.adapters.neighbours import Executors, GpuServer
from rouse_coordinator.adapters.process import (
    InstanceProcess,
    Launch,
    Launcher,
    explain,
)
from rouse_coordinator.config import CoordinatorConfig
from rouse_coordinator.lines import LinePump
from rouse_coordinator.registry import Registry
from rouse_coordinator.table import Event

LOG = logging.getLogger(__name__)

# After SIGTERM an instance finishes what it executes for two seconds itself.
TERM_WAIT_S = 3.0


class NotLoaded(Exception):
    """Why an instance does not come to serve."""


@dataclass(frozen=True)
class StopRequest:
    grace_s: float
    reason: str


@dataclass
class Life:
    """What the task of one instance shares with its callers."""

    version: FunctionVersion
    accepted_at: float
    # Values by environment variable.
    secret_values: Mapping[str, str] = field(default_factory=dict, repr=False)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    assignment: asyncio.Future[GetAssignmentResponse] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    loaded: asyncio.Future[ReportLoadedRequest] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    stop: asyncio.Future[StopRequest] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Living:
    """Leads instances through their lives.

    Args:
        coordinator_address: unix:PATH of InstanceService.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        registry: Registry,
        gpu_server: GpuServer,
        executors: Executors,
        launcher: Launcher,
        coordinator_address: str,
        clock: Clock,
    ) -> None:
        self._launcher = launcher
        self._config, self._registry, self._clock = config, registry, clock
        self._gpu_server, self._executors = gpu_server, executors
        self._coordinator = coordinator_address

    async def run(self, instance_id: str, life: Life) -> None:
        """From a PENDING row to a terminal one; returns when nothing of the process is left."""
        process: InstanceProcess | None = None
        staging = asyncio.ensure_future(self._gpu_server.stage(life.version, self._config.stage_timeout_s))
        reason = ""
        try:
            try:
                process = await self._start(instance_id, life)
                if process is not None:
                    await self._load(instance_id, life, process, staging)
                    reason = await self._serve(life, process)
            except NotLoaded as error:
                metrics.LOAD_FAILURES.inc()
                reason = str(error)
            stopped = life.stop.done()
            if stopped:
                await self._quiesce(instance_id, life.stop.result())
            await self._end(process)
            if stopped:
                self._registry.move(instance_id, Event.EXITED, life.stop.result().reason)
            else:
                self._registry.move(instance_id, Event.FAILED, reason)
        finally:
            if process is not None:
                process.signal(signal.SIGKILL)
                self._launcher.ended(process)
            staging.cancel()
            life.assignment.cancel()
            life.loaded.cancel()
            await asyncio.wait([staging])

    async def _start(self, instance_id: str, life: Life) -> InstanceProcess | None:
        """The process; None where the instance is to stop before there is one. Raises NotLoaded."""
        self._registry.move(instance_id, Event.LAUNCHED, "its process is being started")
        pump = LinePump(life.version.spec.name, instance_id, self._clock)
        launch = Launch(instance_id, life.token, life.version, self._coordinator)
        starting = asyncio.ensure_future(self._launcher.start(launch, pump))
        either: list[asyncio.Future[Any]] = [starting, life.stop]
        await asyncio.wait(either, timeout=self._config.load_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            if life.stop.done():
                return None
            raise NotLoaded(f"its process did not start within {self._config.load_timeout_s:g} s (load_timeout_s)")
        try:
            process = starting.result()
        except OSError as error:
            raise NotLoaded(f"the machine does not start a process: {error.strerror}") from error
        self._registry.move(instance_id, Event.SPAWNED, "loading", pid=process.pid)
        return process

    async def _load(
        self, instance_id: str, life: Life, process: InstanceProcess, staging: asyncio.Future[StageVersionResponse]
    ) -> None:
        """Gives the process what it is to run, and waits until it has loaded. Raises NotLoaded.

        Returns early where the instance is to stop.
        """
        staged = await self._staged(life, process, staging)
        if staged is None:
            return
        paths = [staged.artefact_path, *([staged.image_path] if staged.image_path else []), *staged.segment_folders]
        process.quarters.grant(paths)
        life.assignment.set_result(
            GetAssignmentResponse(
                version=life.version,
                artefact=staged.artefact,
                artefact_path=staged.artefact_path,
                image_path=staged.image_path,
                environment={**life.version.spec.environment, **life.secret_values},
            )
        )
        async with _Race(process) as race:
            first = await race.first(life.loaded, life.stop, timeout_s=self._config.load_timeout_s)
        if first is life.stop:
            return
        if not life.loaded.done():
            raise NotLoaded(await self._why_not(process))
        report = life.loaded.result()
        if report.error:
            raise NotLoaded(report.error)
        self._registry.move(instance_id, Event.LOADED, "loaded", address=report.address, isolation=report.isolation)
        took_s = self._clock.monotonic() - life.accepted_at
        metrics.LOAD_TIME.observe(took_s)
        LOG.info(
            "started function=%s instance=%s version=%s pid=%d took_ms=%.0f load_ms=%.0f",
            life.version.spec.name, instance_id, life.version.version_id, process.pid, took_s * 1000, report.load_ms,
        )  # fmt: skip

    async def _staged(
        self, life: Life, process: InstanceProcess, staging: asyncio.Future[StageVersionResponse]
    ) -> StageVersionResponse | None:
        """What gpu-server made of the version; None where the instance is to stop. Raises NotLoaded."""
        async with _Race(process) as race:
            await race.first(staging, life.stop, timeout_s=None)
        if staging.done():
            try:
                return staging.result()
            except RouseError as error:
                raise NotLoaded(f"the version cannot be brought to the node: {error}") from error
        if life.stop.done():
            return None
        raise NotLoaded(await self._why_not(process))

    async def _serve(self, life: Life, process: InstanceProcess) -> str:
        """Waits for the end of an instance that serves; why it ended, where nobody asked for that."""
        if life.stop.done():
            return ""
        async with _Race(process) as race:
            await race.first(life.stop, timeout_s=None)
        if life.stop.done():
            return ""
        metrics.INSTANCES_LOST.inc()
        return explain(await process.ended(), process.last_lines)

    async def _why_not(self, process: InstanceProcess) -> str:
        """Why there was no report: the process is gone, or it took too long."""
        if process.returncode is None:
            return f"it did not load within {self._config.load_timeout_s:g} s (load_timeout_s)"
        return explain(await process.ended(), process.last_lines)

    async def _quiesce(self, instance_id: str, request: StopRequest) -> None:
        """No new requests, and time for the one that runs."""
        row = self._registry.table.get(instance_id)
        assert row is not None
        address = row.address
        self._registry.move(instance_id, Event.STOP, request.reason)
        if not address:
            return
        try:
            await self._executors.detach(address, max(0.1, request.grace_s))
        except RouseError as error:
            LOG.warning("stopping all the same function=%s instance=%s reason=%s", row.function, instance_id, error)
        await self._executors.forget(address)

    async def _end(self, process: InstanceProcess | None) -> None:
        """SIGTERM, then SIGKILL; returns when the process is reaped and nothing of it is left."""
        if process is None:
            return
        process.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(TERM_WAIT_S):
                await process.wait()
        except TimeoutError:
            process.signal(signal.SIGKILL)
        await process.ended()


class _Race:
    """Waits for the first of several futures and the end of a process."""

    def __init__(self, process: InstanceProcess) -> None:
        self._process = process

    async def __aenter__(self) -> _Race:
        self._exit = asyncio.ensure_future(self._process.wait())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._exit.cancel()
        await asyncio.wait([self._exit])

    async def first(self, *futures: asyncio.Future[Any], timeout_s: float | None) -> asyncio.Future[Any] | None:
        """The first of `futures` that is done, in their order; None for the process's end or the timeout."""
        await asyncio.wait([*futures, self._exit], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return next((future for future in futures if future.done()), None)
