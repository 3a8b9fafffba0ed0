"""Processes that a scenario measures: started, waited for until they listen, and gone afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

START_S = 120.0
STOP_S = 20.0
POLL_S = 0.05
TAIL_LINES = 20


class NotStarted(Exception):
    """A process that did not come up; the text has the end of its output."""


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def serving(
    command: Sequence[str], port: int, log: Path, env: Mapping[str, str] | None = None, start_s: float = START_S
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command in a session of its own until the block ends; begins it when `port` accepts connections.

    Raises NotStarted.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **(env or {})}, cwd=log.parent,
        )  # fmt: skip
    try:
        _wait(process, port, log, start_s)
        yield process
    finally:
        _stop(process)


@dataclass(frozen=True)
class Cost:
    """What processes cost while they do nothing: memory of their own in MB, shared pages counted once, and the share
    of one core."""

    resident_mb: float
    cores: float


def idle_cost(process: subprocess.Popen[bytes], seconds: float) -> Cost:
    """The cost of a process and all its descendants over a while."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    before = sum(_cpu_s(p) for p in family)
    time.sleep(seconds)
    used = sum(_cpu_s(p) for p in family) - before
    return Cost(sum(p.memory_full_info().pss for p in family) / 1e6, used / seconds)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path, start_s: float) -> None:
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotStarted(f"{process.args!r} ended with {process.returncode}:\n{_tail(log)}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(POLL_S)
    raise NotStarted(f"{process.args!r} does not listen on port {port} after {start_s:.0f} s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the whole session: servers leave children behind."""
    for number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_S)
