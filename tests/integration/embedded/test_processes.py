"""Supervision of real processes: started again, given up, stopped in order, their lines kept."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from rouse_embedded.logs import MAX_LINE_BYTES, Line
from rouse_embedded.processes import Observers, ProcessSpec, Supervised
from rouse_embedded.restart import Restart, RestartSettings

SERVE = "import signal, sys\nprint('serving', flush=True)\nsignal.pause()"
POLITE = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + SERVE
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVE + "\nsignal.pause()\nsignal.pause()"
SETTINGS = RestartSettings(first_s=0.01, longest_s=0.05, start_attempts=3)


class Watched:
    """A supervised process and what its observers were told."""

    def __init__(self, folder: Path, code: str, probe: Callable[[int], Awaitable[bool]] | None = None) -> None:
        self.lines: list[Line] = []
        self.restarts: list[Restart] = []
        self.given_up: list[str] = []
        self.news = asyncio.Condition()
        self._waiters: list[tuple[Callable[[], bool], asyncio.Event]] = []

        async def serves(pid: int) -> bool:
            return any(line.text == "serving" for line in self.lines)

        spec = ProcessSpec(
            name="probe", command=[sys.executable, "-u", "-c", code], environment={"WHO": "me"}, folder=folder,
            address="", probe=probe or serves, stop_timeout_s=1.0,
        )  # fmt: skip
        observers = Observers(self._line, self._restarted, self._given_up, self._changed)
        self.process = Supervised(spec, observers, SETTINGS)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for news that make it true."""
        event = asyncio.Event()
        self._waiters.append((holds, event))
        self._changed()
        await event.wait()

    def _changed(self) -> None:
        for holds, event in self._waiters:
            if holds():
                event.set()

    def _line(self, name: str, level: str, raw: str) -> Line:
        self.lines.append(Line(name, level, raw))
        self._changed()
        return self.lines[-1]

    def _restarted(self, name: str, restart: Restart) -> None:
        self.restarts.append(restart)
        self._changed()

    def _given_up(self, name: str, reason: str) -> None:
        self.given_up.append(reason)
        self._changed()


@asynccontextmanager
async def running(watched: Watched) -> AsyncIterator[Watched]:
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(watched.process.run())
        yield watched
        await watched.process.stop()


async def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    async with running(Watched(tmp_path, SERVE)) as watched:
        process = watched.process
        await watched.until(lambda: process.ready)
        first = process.pid
        await process.kill()
        assert not process.ready
        await watched.until(lambda: process.ready and process.starts == 2)
        assert process.pid != first
        assert "signal 9" in watched.restarts[0].reason
    assert process.pid is None


async def test_a_process_that_cannot_start_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    async with running(Watched(tmp_path, "print('no database'); raise SystemExit(1)")) as watched:
        await watched.until(lambda: bool(watched.given_up))
    assert [line.text for line in watched.process.last_lines] == ["no database"] * 3
    assert len(watched.restarts) == 2


async def test_a_program_that_is_not_there_is_given_up(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "nowhere", SERVE)
    async with running(watched):
        await watched.until(lambda: bool(watched.given_up))
    assert all("cannot start" in line.text for line in watched.lines)


async def test_a_stop_is_polite_and_then_final(tmp_path: Path) -> None:
    for code, restarts in ((POLITE, 0), (STUBBORN, 0)):
        async with running(Watched(tmp_path, code)) as watched:
            await watched.until(lambda watched=watched: watched.process.ready)  # type: ignore[misc]
            pid = watched.process.pid
            assert pid is not None
        assert not psutil.pid_exists(pid)
        assert len(watched.restarts) == restarts


async def test_a_stop_during_the_wait_for_a_restart_starts_nothing(tmp_path: Path) -> None:
    watched = Watched(tmp_path, SERVE)
    watched.process._settings = RestartSettings(first_s=3600, longest_s=3600)
    async with running(watched):
        await watched.until(lambda: watched.process.ready)
        await watched.process.kill()
        await watched.until(lambda: bool(watched.restarts))
    assert watched.process.starts == 1


async def test_a_cancelled_supervisor_leaves_no_process(tmp_path: Path) -> None:
    watched = Watched(tmp_path, SERVE)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watched.process.run())
        await watched.until(lambda: watched.process.ready)
        pid = watched.process.pid
        assert pid is not None
        task.cancel()
    assert not psutil.pid_exists(pid)


async def test_lines_arrive_whole_in_order_and_bounded(tmp_path: Path) -> None:
    code = (
        "import sys, os\n"
        "for n in range(2000): print('line', n)\n"
        f"print('x' * {3 * MAX_LINE_BYTES})\n"
        "os.write(2, b'\\xff\\xfe not text\\n'); print('ready 127.0.0.1:1'); print(' '); print(os.environ['WHO'])\n"
        "os.write(1, b'no end')\n" + SERVE.replace("serving", "\\nserving")
    )
    async with running(Watched(tmp_path, code)) as watched:
        await watched.until(lambda: watched.process.ready)
    texts = [line.text for line in watched.lines]
    assert texts[:2000] == [f"line {n}" for n in range(2000)]
    long, rest = texts[2000:-4], texts[-4:]
    assert "".join(long) == "x" * (3 * MAX_LINE_BYTES)
    assert all(len(text) <= 2 * MAX_LINE_BYTES for text in long)
    assert rest == ["\ufffd\ufffd not text", "me", "no end", "serving"]


async def test_output_after_the_last_newline_is_kept(tmp_path: Path) -> None:
    async with running(Watched(tmp_path, "import os; os.write(2, b'last words'); os._exit(1)")) as watched:
        await watched.until(lambda: bool(watched.given_up))
    assert {line.text for line in watched.lines} == {"last words"}


async def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_supervisor(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(child.pid, flush=True)\n" + SERVE
    )
    async with running(Watched(tmp_path, code)) as watched:
        await watched.until(lambda: watched.process.ready)
        await watched.process.kill()
        await watched.until(lambda: len(watched.restarts) == 1)
        await watched.until(lambda: watched.process.starts == 2)
    for line in watched.lines:
        if line.text.isdigit():
            os.kill(int(line.text), signal.SIGKILL)


async def test_preparing_happens_before_each_start_and_its_failure_is_told(tmp_path: Path) -> None:
    watched = Watched(tmp_path, SERVE)
    calls: list[int] = []

    def prepare() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise OSError("disk full")

    object.__setattr__(watched.process.spec, "prepare", prepare)
    async with running(watched):
        await watched.until(lambda: watched.process.ready)
        await watched.process.kill()
        await watched.until(lambda: watched.process.ready)
    assert len(calls) == 3
    assert "cannot start: disk full" in watched.lines[0].text


# Not SIGINT: a test run in the background of a shell inherits that it is ignored.
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
async def test_a_signal_from_elsewhere_is_a_restart_too(tmp_path: Path, number: signal.Signals) -> None:
    async with running(Watched(tmp_path, SERVE)) as watched:
        await watched.until(lambda: watched.process.ready)
        await watched.process.kill(number)
        await watched.until(lambda: watched.process.ready and watched.process.starts == 2)
