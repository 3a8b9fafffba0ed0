"""One supervised process: started, watched, its lines kept, started again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rouse_embedded.logs import MAX_LINE_BYTES, Line
from rouse_embedded.restart import Exit, Restart, RestartSettings, RestartState, decide

LOG = logging.getLogger(__name__)
PROBE_PERIOD_S = 0.05
LAST_LINES_S = 1.0
KEPT_LINES = 12
READY_PREFIX = "ready "


@dataclass(frozen=True)
class ProcessSpec:
    """What to run.

    Args:
        name: unique in the mesh; `gateway`, or `node-router@node-0` for a service of a node.
        command, environment, folder: the program, its whole environment, its working directory.
        address: host:port where it serves.
        probe: whether the process with this pid does its job now.
        prepare: called in a thread before each start.
        stop_rank: processes of a lower rank are stopped before those of a higher one.
        stop_timeout_s: after this long a stop becomes a kill.
    """

    name: str
    command: list[str]
    environment: Mapping[str, str]
    folder: Path
    address: str
    probe: Callable[[int], Awaitable[bool]]
    prepare: Callable[[], object] | None = None
    stop_rank: int = 0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 10.0
    metrics_address: str = ""


@dataclass
class Observers:
    """Who is told what: each line (process, level, text), each restart, that a process is given up, and
    that it was started or became ready."""

    line: Callable[[str, str, str], Line]
    restarted: Callable[[str, Restart], object]
    given_up: Callable[[str, str], object]
    changed: Callable[[], object] = field(default=lambda: None)


class Supervised:
    """Runs a ProcessSpec until `stop`."""

    def __init__(self, spec: ProcessSpec, observers: Observers, settings: RestartSettings) -> None:
        self.spec = spec
        self.pid: int | None = None
        self.ready = False
        self.starts = 0
        self.last_lines: deque[Line] = deque(maxlen=KEPT_LINES)
        self._observers = observers
        self._settings = settings
        self._state = RestartState()
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()  # until it runs
        self._exited = asyncio.Condition()

    async def run(self) -> None:
        """Starts the process and keeps it running; returns when it was stopped or is given up."""
        self._ended.clear()
        try:
            while not self._stopping.is_set():
                exit = await self._once()
                if self._stopping.is_set():
                    return
                restart, self._state = decide(exit, self._state, self._settings)
                if restart.give_up:
                    self._observers.given_up(self.spec.name, restart.reason)
                    return
                self._observers.restarted(self.spec.name, restart)
                with contextlib.suppress(TimeoutError):  # the time is over, nobody asked to stop
                    await asyncio.wait_for(self._stopping.wait(), restart.delay_s)
        finally:
            self._ended.set()

    async def stop(self, *, at_once: bool = False) -> None:
        """Ends the process in order, by force after its timeout or `at_once`."""
        self._stopping.set()
        self.send(signal.SIGKILL if at_once else self.spec.stop_signal)
        try:
            await asyncio.wait_for(self._ended.wait(), self.spec.stop_timeout_s)
        except TimeoutError:
            LOG.warning("%s did not stop within %.0f s and is killed", self.spec.name, self.spec.stop_timeout_s)
            self.send(signal.SIGKILL)
            await self._ended.wait()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; nothing where the process does not run."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended a moment ago
                os.kill(self.pid, number)

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal and waits until this run of the process has ended. It is then started again."""
        before = self.starts
        self.send(number)
        async with self._exited:
            await self._exited.wait_for(lambda: self.pid is None or self.starts != before)

    async def _once(self) -> Exit:
        started = time.monotonic()
        try:
            if self.spec.prepare is not None:
                await asyncio.to_thread(self.spec.prepare)
            reading, writing = os.pipe()
            try:
                process = await asyncio.create_subprocess_exec(
                    *self.spec.command, stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=writing,
                    env=dict(self.spec.environment), cwd=self.spec.folder, start_new_session=True,
                )  # fmt: skip
            except BaseException:
                os.close(reading)
                raise
            finally:
                os.close(writing)
        except (OSError, RuntimeError) as error:
            self._keep(f"cannot start: {error}", "ERROR")
            return Exit(1, time.monotonic() - started, False)
        self.pid, self.starts = process.pid, self.starts + 1
        self._observers.changed()
        if self._stopping.is_set():  # it was asked to stop while it was being started
            self.send(self.spec.stop_signal)
        try:
            code = await self._watch(process, reading)
        except BaseException:
            self.send(signal.SIGKILL)
            await process.wait()
            raise
        finally:
            was_ready, self.ready, self.pid = self.ready, False, None
        async with self._exited:
            self._exited.notify_all()
        return Exit(code, time.monotonic() - started, was_ready)

    async def _watch(self, process: asyncio.subprocess.Process, reading: int) -> int:
        """Reads lines and probes until the process ends; returns its exit code."""
        async with asyncio.TaskGroup() as tasks:
            lines = tasks.create_task(self._read(reading))
            probing = tasks.create_task(self._probe(process.pid))
            code = await process.wait()
            # What it started itself may hold the pipe open for longer than it lives.
            await asyncio.wait([lines], timeout=LAST_LINES_S)
            lines.cancel()
            probing.cancel()
        return code

    async def _probe(self, pid: int) -> None:
        while not await self.spec.probe(pid):  # noqa: ASYNC110 - another process sets no event of ours
            await asyncio.sleep(PROBE_PERIOD_S)
        self.ready = True
        self._state = dataclasses.replace(self._state, was_ready=True)
        self._observers.changed()

    async def _read(self, descriptor: int) -> None:
        """Hands on the process's lines until it closes them; a line past the bound is cut there."""
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
        )
        try:
            rest = b""
            while data := await reader.read(MAX_LINE_BYTES):
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    self._keep(line.decode(errors="replace"), "INFO")
                if len(rest) > MAX_LINE_BYTES:
                    self._keep(rest.decode(errors="replace"), "INFO")
                    rest = b""
            if rest:
                self._keep(rest.decode(errors="replace"), "INFO")
        finally:
            transport.close()

    def _keep(self, text: str, level: str) -> None:
        if text.strip() and not text.startswith(READY_PREFIX):
            self.last_lines.append(self._observers.line(self.spec.name, level, text))
