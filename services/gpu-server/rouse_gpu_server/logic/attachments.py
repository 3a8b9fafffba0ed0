"""Which executor has which device memory mapped: attaching, detaching, and what to do where one does not.

Memory is only ever given back when no executor can have it mapped: the executor said that it is
detached, or its process is gone.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from rouse_common.clock import Clock
from rouse_common.errors import RouseError, Unavailable
from rouse_contracts.device import AttachRequest
from rouse_gpu_server import metrics
from rouse_gpu_server.adapters import processes
from rouse_gpu_server.adapters.coordinator import Coordinator
from rouse_gpu_server.adapters.executors import Executors
from rouse_gpu_server.logic.measuring import Measuring
from rouse_gpu_server.logic.sessions import Sessions
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.state.pool import Pool
from rouse_gpu_server.state.records import MAX_REFUSALS, Executor, Model, Phase, Resident, Turn
from rouse_gpu_server.state.wakeup import Wakeup

LOG = logging.getLogger(__name__)
# How often a process that should end is looked at.
LOOK_AGAIN_S = 0.1


@dataclass(frozen=True)
class Limits:
    """attach_s, detach_s: how long an executor may take; threads: where a function names none."""

    attach_s: float
    detach_s: float
    threads: int


class Attachments:
    """Attaches executors to residents and makes them idle and detached again."""

    def __init__(
        self,
        pool: Pool,
        executors: Executors,
        coordinator: Coordinator,
        background: Background,
        wakeup: Wakeup,
        clock: Clock,
        limits: Limits,
        sessions: Sessions,
        measuring: Measuring,
    ) -> None:
        self._pool, self._executors, self._coordinator = pool, executors, coordinator
        self._background, self._wakeup, self._clock, self._limits = background, wakeup, clock, limits
        self._sessions, self._measuring = sessions, measuring
        self._settling: dict[str, asyncio.Task[None]] = {}

    async def attach(self, executor: Executor, model: Model, resident: Resident | None) -> None:
        """Attaches an executor; `resident` is None for a model without weights.

        Raises RouseError; the executor is then being made idle and detached, in the background.
        """
        if executor.phase is Phase.ATTACHED:
            await asyncio.shield(self.settle(executor))
        if executor.phase is not Phase.DETACHED:
            raise Unavailable("EXECUTOR_LOST", f"instance {executor.instance_id} is {executor.phase.value}")
        segment = resident.segment if resident is not None else None
        request = AttachRequest(
            segment_path=str(segment.path) if segment is not None else "",
            size_bytes=model.artefact.image_bytes if segment is not None else 0,
            device=resident.device.name if resident is not None else "host",
            threads=model.version.spec.resources.threads or self._limits.threads,
            lease_id=uuid.uuid4().hex,
        )
        executor.turn(Turn.ATTACH)
        executor.attached = resident
        try:
            if resident is not None and self._sessions.wanted(model, resident):
                request.session_path = await self._sessions.open(executor, resident)
                request.segment_path = ""
            asking = self._executors.attach(executor.address, request, self._limits.attach_s)
            await _unless_gone(executor, asking)
        except BaseException as error:
            # Whether it has the memory mapped is not known now.
            if executor.alive:
                executor.turn(Turn.DOUBT)
                executor.refusals += 1
                LOG.warning(
                    "attach failed function=%s instance=%s device=%s refusals=%d error=%s",
                    model.function, executor.instance_id, request.device, executor.refusals, error,
                )  # fmt: skip
                self.settle(executor)
            raise
        if not executor.alive:
            raise Unavailable("EXECUTOR_LOST", f"instance {executor.instance_id} ended while it was being attached")
        executor.turn(Turn.ATTACHED)
        executor.attachment_id = request.lease_id
        executor.refusals = 0
        if resident is not None:
            self.used(resident)

    def used(self, resident: Resident) -> None:
        """What was done with the resident may have taken memory of its device."""
        self._measuring.used(resident)

    def in_core(self, model: Model) -> bool:
        """Whether the model's weights lie in a native executor."""
        return self._sessions.in_core(model)

    async def bring(self, resident: Resident, key: str) -> None:
        """Has the device's native executor map the resident, for a request of this kind first. Raises RouseError."""
        await self._sessions.bring(resident, key)

    async def forget(self, model: Model) -> None:
        """No process of its own that the model may have keeps its host image."""
        await self._sessions.forget(model.version_id)

    def has_tapes(self, resident: Resident, key: str) -> bool:
        """Whether the device answers requests of a kind by tapes as it is."""
        return self._sessions.mapped_with(resident, key)

    async def map_tapes(self, resident: Resident, key: str) -> None:
        """Has the device answer requests of a kind by tapes, without an instance. Raises RouseError."""
        await self._sessions.map_tapes(resident, key)
        self.used(resident)

    async def end_replays(self, resident: Resident) -> None:
        """What still replays under a lease that was given up ends; nothing does once the resident is unmapped."""
        await self._sessions.unmap(resident, unless_open=True)

    async def unmap(self, resident: Resident) -> None:
        """The device's executor does not have the resident's memory any more."""
        await self._sessions.unmap(resident)

    def settle(self, executor: Executor) -> asyncio.Task[None]:
        """Makes an executor idle and detached, or waits until it is gone. Single flight; never fails."""
        running = self._settling.get(executor.instance_id)
        if running is not None:
            return running
        if executor.phase is not Phase.UNKNOWN and executor.alive:
            executor.turn(Turn.DOUBT)
        task = self._background.start(self._settle(executor), f"settle {executor.instance_id}")
        self._settling[executor.instance_id] = task
        task.add_done_callback(lambda _: self._settling.pop(executor.instance_id, None))
        return task

    async def _settle(self, executor: Executor) -> None:
        due = self._clock.monotonic() + self._limits.detach_s
        while executor.alive:
            try:
                asking = self._executors.detach(executor.address, self._limits.detach_s)
                await _unless_gone(executor, asking)
            except RouseError as error:
                self.notice_if_gone(executor)
                if executor.alive and (self._clock.monotonic() >= due or executor.refusals >= MAX_REFUSALS):
                    await self._condemn(executor, f"did not detach: {error}")
                await self._look_again(executor)
            else:
                break
        await self._sessions.close(executor.instance_id)
        if executor.alive:
            executor.attached, executor.attachment_id = None, ""
            executor.stuck = False
            executor.turn(Turn.DETACHED)
            if executor.refusals >= MAX_REFUSALS and not executor.condemned:
                await self._condemn(executor, f"refused {executor.refusals} attachments in a row")
        self._wakeup.kick()

    async def _condemn(self, executor: Executor, why: str) -> None:
        """Has the coordinator end an executor; tried again by the caller where it cannot be reached."""
        executor.stuck = True
        self._wakeup.kick()
        if executor.condemned:
            return
        try:
            await self._coordinator.end_instance(executor.instance_id, why)
        except RouseError as error:
            LOG.warning("cannot have instance %s ended, trying again: %s", executor.instance_id, error)
            return
        executor.condemned = True
        self._wakeup.kick()
        metrics.EXECUTORS_ENDED.labels("stuck" if executor.refusals < MAX_REFUSALS else "refused").inc()
        LOG.warning("ended instance=%s version=%s reason=%s", executor.instance_id, executor.version_id, why)

    async def _look_again(self, executor: Executor) -> None:
        if not executor.alive:
            return
        try:
            async with asyncio.timeout(LOOK_AGAIN_S):
                await executor.gone.wait()
        except TimeoutError:
            self.notice_if_gone(executor)

    def core_lost(self, device: str, reason: str, version_id: str = "") -> None:
        """A device's native executor ended, or an isolated version's: the instances that computed through it are
        detached, and start anew."""
        for instance_id in self._sessions.lost(device, version_id):
            executor = self._pool.executors.get(instance_id)
            if executor is not None and executor.alive:
                LOG.warning("session lost instance=%s device=%s reason=%s", instance_id, device, reason)
                self.settle(executor)

    def notice_if_gone(self, executor: Executor) -> None:
        """Where its process can be seen to have ended, the executor is gone."""
        if executor.alive and processes.is_gone(executor.pid, executor.started_at):
            self.lost(executor, f"process {executor.pid} has ended")

    def lost(self, executor: Executor, reason: str) -> None:
        """An executor is gone: its lease ends, and its memory is no longer mapped. The copy stays resident."""
        if not executor.alive:
            return
        executor.turn(Turn.GONE)
        executor.attached, executor.stuck = None, False
        lease = executor.lease
        # A lease that is still being granted is ended by whoever grants it.
        if lease is not None and lease.lease_id:
            self._pool.end(lease, reason, self._clock.monotonic(), self._clock.now())
        executor.gone.set()
        LOG.info("executor gone instance=%s version=%s reason=%s", executor.instance_id, executor.version_id, reason)
        self._background.start(self._executors.forget(executor.address), f"forget {executor.instance_id}")
        self._background.start(self._sessions.close(executor.instance_id), f"close {executor.instance_id}")
        self._wakeup.kick()


async def _unless_gone(executor: Executor, asking: Coroutine[Any, Any, None]) -> None:
    """A call to an executor, cut short when the executor turns out to be gone. Raises RouseError."""
    async with asyncio.TaskGroup() as group:
        call = group.create_task(_error_of(asking))
        leaving = group.create_task(executor.gone.wait())
        await asyncio.wait([call, leaving], return_when=asyncio.FIRST_COMPLETED)
        for task in (call, leaving):
            task.cancel()
    error = (
        Unavailable("EXECUTOR_LOST", f"instance {executor.instance_id} is gone") if call.cancelled() else call.result()
    )
    if error is not None:
        raise error


async def _error_of(asking: Coroutine[Any, Any, None]) -> RouseError | None:
    try:
        await asking
    except RouseError as error:
        return error
    return None
