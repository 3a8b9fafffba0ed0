"""What the three stores have in common: a data folder, a port, a password, one process."""

from __future__ import annotations

import abc
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

LAUNCH = Path(__file__).resolve().parents[1] / "launch.py"
HOST = "127.0.0.1"
NOBODY = 65534
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.01
LOG_TAIL_BYTES = 4096
PORTS = range(16_000, 32_000)
PORT_ATTEMPTS = 1000
# Ports given by `free_port`, the latest so many: a mesh needs two dozen.
MAX_GIVEN = 4000
_GIVEN: dict[int, None] = {}


class StoreError(RuntimeError):
    """A store that cannot start or answer; the text says which, why, and where its log is."""


def free_port() -> int:
    """A loopback port that nothing listens on now, and that this process has given to nobody else: what one service
    is to listen on later must not be found free for another.

    It lies below the range that the kernel takes outgoing connections' ports from: otherwise a client's
    connection could hold the port of a server that is being started again.
    """
    for _ in range(PORT_ATTEMPTS):
        port = secrets.randbelow(PORTS.stop - PORTS.start) + PORTS.start
        if port in _GIVEN:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        _GIVEN[port] = None
        if len(_GIVEN) > MAX_GIVEN:
            del _GIVEN[next(iter(_GIVEN))]
        return port
    raise StoreError(f"found no free port on {HOST} between {PORTS.start} and {PORTS.stop - 1}")


def launched(program: list[str], stop_signal: signal.Signals, user: int = -1) -> list[str]:
    """The command that runs `program` such that it gets `stop_signal` when this process dies."""
    words = [str(os.getpid()), str(int(stop_signal)), str(user), "--", *program]
    return [sys.executable, "-I", "-S", str(LAUNCH), *words]


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)


class Store(abc.ABC):
    """One store on a loopback port of its own. Its data and its password outlive the process.

    A supervisor calls `prepare`, runs `command` and asks `answers`; `start` and `stop` do all of it for
    whoever has no supervisor.

    Args:
        folder: where it keeps everything; made if absent.
        port: where it listens; 0 takes a free one, kept for as long as this object lives.
    """

    name: str
    stop_signal: signal.Signals = signal.SIGTERM

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder.absolute()
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """Where clients connect, with the password: pass it by environment, never as an argument."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Makes or mends what the process needs in the folder. Blocks; raises StoreError."""

    @abc.abstractmethod
    def command(self) -> list[str]:
        """The process, such that it ends with this one. No secret is in it."""

    @abc.abstractmethod
    def answers(self, pid: int) -> bool:
        """Whether the process `pid` serves clients now. Blocks for a moment at most; never raises."""

    @property
    def password(self) -> str:
        """Made at first use, kept in the folder."""
        path = self.folder / "password"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(path, secrets.token_urlsafe(24))
        return path.read_text()

    @property
    def log_path(self) -> Path:
        """Where `start` sends the process's output."""
        return self.folder / "log.txt"

    @property
    def pid(self) -> int | None:
        """The process that `start` started."""
        return self._process.pid if self._process is not None else None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Prepares, starts and waits until it answers. Raises StoreError."""
        self.prepare()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self.wait_ready(timeout_s)
        except BaseException:
            self.stop()
            raise

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the started process answers. Raises StoreError with the end of its log."""
        assert self._process is not None, "start it first"
        deadline = time.monotonic() + timeout_s
        while not self.answers(self._process.pid):
            code = self._process.poll()
            if code is not None:
                raise StoreError(f"{self.name} ended with {code} instead of starting: {self.log_tail()}")
            if time.monotonic() > deadline:
                raise StoreError(f"{self.name} does not answer after {timeout_s:.0f} s: {self.log_tail()}")
            time.sleep(POLL_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ends the process in order, by force after `timeout_s`. Nothing where it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(self.stop_signal)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """Ends the process as a crash would; `start` brings it back with its data."""
        assert self._process is not None, "start it first"
        self._process.kill()
        self._process.wait()
        self._process = None

    def log_tail(self) -> str:
        """The end of the log on one line, for an error message."""
        if not self.log_path.exists():
            return "it wrote no log"
        with self.log_path.open("rb") as file:
            with contextlib.suppress(OSError):  # a log shorter than that is read whole
                file.seek(-LOG_TAIL_BYTES, os.SEEK_END)
            lines = file.read().decode(errors="replace").strip().splitlines()
        return f"{' | '.join(lines[-5:])} (log: {self.log_path})"
