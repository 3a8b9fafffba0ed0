"""The executor of a device as a process: started, watched, started again when it ends, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO, Any

from rouse_common.child import exit_of
from rouse_common.errors import RouseError, Unavailable
from rouse_common.link import Links
from rouse_native import executor_program
from rouse_native.executor_client import ExecutorClient

LOG = logging.getLogger(__name__)

KEPT_LINES = 20
LINE_BYTES = 16 << 10
# What an executor may see of our environment.
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "CUDA_VISIBLE_DEVICES")
# Threads that wait for their siblings sleep: executors share cores with the node's services.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True)
class ExecutorSettings:
    """What an executor is started with, and how it is watched.

    Attributes:
        device: as "host:0".
        folder: for its link's socket; a path short enough for one.
        flags: further flags of `rouse-executor --help`, by name.
        start_s: how long it may take until it serves.
        drain_s: how long calls under way may take when it stops.
        health_period_s, health_timeout_s: how often it is asked, and how long it may take to answer; it answers beside
            whatever it computes. Two answers that do not come end it.
        backoff_s, backoff_max_s: pause before it is started again; doubles with every start that failed soon.
        settled_s: an executor that served so long starts again after the first pause.
    """

    device: str
    folder: Path
    flags: Mapping[str, int | str] = field(default_factory=dict)
    program: Path | None = None
    start_s: float = 30.0
    drain_s: float = 10.0
    health_period_s: float = 2.0
    health_timeout_s: float = 5.0
    backoff_s: float = 0.1
    backoff_max_s: float = 5.0
    settled_s: float = 30.0
    max_message_mib: int = 64


class State(Enum):
    """What an executor's process does."""

    STOPPED = "stopped"
    STARTING = "starting"
    SERVING = "serving"
    BACKING_OFF = "backing off"


class ExecutorProcess:
    """One executor. `running()` keeps it alive; what was mapped in one that ended is gone with it.

    Args:
        links: over which it is called; the caller closes them.
        on_serving: awaited each time that it serves anew, with its number (1, 2, …), before `client` is ready for
            others: whoever owns the executor maps its models and opens its sessions again there. What it raises counts
            as a failed start.
        on_lost: called each time that it ended without being asked to, with the reason.
    """

    def __init__(
        self,
        settings: ExecutorSettings,
        links: Links,
        *,
        on_serving: Callable[[int], Awaitable[None]] | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._settings, self._links = settings, links
        self._on_serving, self._on_lost = on_serving, on_lost
        self._socket = settings.folder / f"executor-{settings.device.replace(':', '-')}.sock"
        self.client = ExecutorClient(links, f"unix:{self._socket}")
        self._process: subprocess.Popen[bytes] | None = None
        self._ready, self._change = asyncio.Event(), asyncio.Event()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.state = State.STOPPED
        self.reason = "not started"
        self.incarnation = 0

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._process is None else self._process.pid

    @property
    def last_lines(self) -> list[str]:
        """What it printed last."""
        return list(self._lines)

    async def serving(self, timeout_s: float) -> None:
        """Returns when it serves. Raises Unavailable EXECUTOR_DOWN, with why, where that takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            raise Unavailable(
                "EXECUTOR_DOWN",
                f"the executor of {self._settings.device} is {self.state.value}: {self.reason}",
                retry_after_s=self._settings.backoff_s,
                device=self._settings.device,
            ) from None

    async def changed(self) -> None:
        """Returns when `state` has become another."""
        change = self._change
        await change.wait()

    def kill(self) -> None:
        """Ends the process at once; it is started again while it is kept running."""
        if self._process is not None:
            self._process.kill()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ExecutorProcess]:
        """Keeps an executor running inside the block and stops it after. Does not wait until it serves."""
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(stopping))
            try:
                yield self
            finally:
                stopping.set()

    # ---- One process after the other -------------------------------------------------------------

    async def _keep(self, stopping: asyncio.Event) -> None:
        pause_s = self._settings.backoff_s
        loop = asyncio.get_running_loop()
        while not stopping.is_set():
            started = loop.time()
            why = await self._once(stopping)
            if stopping.is_set():
                break
            LOG.warning("executor lost device=%s reason=%s", self._settings.device, why)
            self._become(State.BACKING_OFF, why)
            if self._on_lost is not None:
                self._on_lost(why)
            if loop.time() - started > self._settings.settled_s:
                pause_s = self._settings.backoff_s
            await _first(stopping.wait(), asyncio.sleep(pause_s))
            pause_s = min(self._settings.backoff_max_s, pause_s * 2)
        self._become(State.STOPPED, "stopped")

    async def _once(self, stopping: asyncio.Event) -> str:
        """One process from start to end; why it ended. However this ends, the process is gone then."""
        self._become(State.STARTING, "it starts")
        self._lines.clear()
        try:
            process = self._spawn()
        except OSError as error:
            return f"it cannot be started: {error}"
        self._process = process
        assert process.stdout is not None
        ended, greeted = exit_of(process), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(process.stdout, greeted))
            try:
                why = await self._watch(ended, greeted, stopping)
                if stopping.is_set():
                    await self._stop(process, ended)
            finally:
                process.kill()
                self._ready.clear()
                self._process = None
                code = await asyncio.shield(ended)
                await reading
                await self._links.forget(self.client.address)
                self._socket.unlink(missing_ok=True)
        return why or self._explain(code)

    def _spawn(self) -> subprocess.Popen[bytes]:
        """By `subprocess`, which uses vfork: the loop's own way is to fork, and gRPC's fork handlers can crash that."""
        settings = self._settings
        flags: dict[str, int | str] = {
            "device": settings.device,
            "listen": str(self._socket),
            "parent": os.getpid(),
            "drain-s": int(settings.drain_s),
            "max-message-mib": settings.max_message_mib,
            **settings.flags,
        }
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | WAITING
        return subprocess.Popen(
            [str(settings.program or executor_program()), *(f"--{name}={value}" for name, value in flags.items())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env=environment,
            start_new_session=True,
        )

    async def _watch(self, ended: asyncio.Future[int], greeted: asyncio.Event, stopping: asyncio.Event) -> str:
        """Until it has ended or is to be stopped; why it should be ended, empty where it did so itself."""
        async with asyncio.TaskGroup() as group:
            stop = group.create_task(stopping.wait())
            serving = group.create_task(self._serve(greeted))
            waits: list[asyncio.Future[Any]] = [ended, stop, serving]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            why = serving.result() if serving.done() and not ended.done() else ""
            stop.cancel()
            serving.cancel()
        return why

    async def _serve(self, greeted: asyncio.Event) -> str:
        """Brings a new process to serve and asks it for its health from then on; returns what is wrong with it."""
        settings = self._settings
        try:
            async with asyncio.timeout(settings.start_s):
                await greeted.wait()
                self.incarnation += 1
                await self.client.describe(settings.start_s)
                if self._on_serving is not None:
                    await self._on_serving(self.incarnation)
        except TimeoutError:
            return f"it did not serve within {settings.start_s:g} s"
        except RouseError as error:
            return f"it could not be set up: {error.reason}: {error.message}"
        self._become(State.SERVING, "it serves")
        self._ready.set()
        missed = 0
        while missed < 2:
            await asyncio.sleep(settings.health_period_s)
            try:
                await self.client.describe(settings.health_timeout_s)
                missed = 0
            except RouseError as error:
                missed += 1
                LOG.warning("executor does not answer device=%s reason=%s", settings.device, error.reason)
        return f"it did not answer twice within {settings.health_timeout_s:g} s"

    async def _stop(self, process: subprocess.Popen[bytes], ended: asyncio.Future[int]) -> None:
        """Lets it finish what it does, a little beyond what it was told that it may take."""
        if not ended.done():
            process.send_signal(signal.SIGTERM)
            await asyncio.wait([ended], timeout=self._settings.drain_s + 1.0)

    async def _read(self, pipe: IO[bytes], greeted: asyncio.Event) -> None:
        """Passes on what it prints, until it has ended."""
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await _line(reader):
                if line == "ready":
                    greeted.set()
                    continue
                self._lines.append(line)
                LOG.info("executor device=%s %s", self._settings.device, line)
        finally:
            transport.close()

    def _become(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason
        self._change.set()
        self._change = asyncio.Event()

    def _explain(self, code: int) -> str:
        words = " | ".join(self._lines)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"it ended with {how}" + (f"; last lines: {words}" if words else "")


async def _line(reader: asyncio.StreamReader) -> str:
    """The next line without its end, in pieces where it is too long; empty at the end of the stream."""
    while True:
        try:
            raw = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            raw = error.partial
            if not raw:
                return ""
        except asyncio.LimitOverrunError as error:
            raw = await reader.readexactly(error.consumed)
        text = raw.decode(errors="backslashreplace").strip()
        if text:
            return text


async def _first(*waits: Awaitable[object]) -> None:
    """Returns when one of them has; the others are cancelled."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_wait(wait)) for wait in waits]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


async def _wait(wait: Awaitable[object]) -> None:
    await wait
