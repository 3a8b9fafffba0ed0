"""The folders of a mesh on this machine: its data, its memory files, its sockets, and who owns them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

LOG = logging.getLogger(__name__)
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the machine's tmpfs is what is meant; our folder there is private
# Every process of a mesh carries its key here, so that it is found again whoever its parent is by now.
TAG = "ROUSE_MESH"
SHORT_PATH = 40
END_TIMEOUT_S = 10.0
POLL_S = 0.02
TRACE_BYTES = 256 << 20
TRACE_FILES = 1000


class MeshLocked(RuntimeError):
    """Another mesh runs on the data folder; the text names its process."""


@dataclass(frozen=True)
class Folders:
    """Args:
    data: what is kept between runs.
    memory: device segments and host copies, in shared memory where there is enough of it.
    runtime: Unix sockets; its path is short.
    key: names this data folder among the machine's meshes.
    memory_is_shared: False where `memory` lies on a disk.
    """

    data: Path
    memory: Path
    runtime: Path
    key: str
    memory_is_shared: bool

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def traces(self) -> Path:
        return self.data / "traces"


@contextlib.contextmanager
def claimed(data_dir: Path, memory_bytes: int) -> Iterator[Folders]:
    """Owns a data folder: locks it, clears what a killed owner left, and on leaving removes what is not kept.

    Raises MeshLocked, and OSError where a folder cannot be made.
    """
    data = data_dir.expanduser().absolute()
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _lock(data / "lock"):
        key = mesh_key(data)
        end_leftovers(key)
        for old in leftovers(data, key):
            shutil.rmtree(old)
        shared = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free >= memory_bytes
        memory = _shared_folder(key) if shared else data / "memory"
        memory.mkdir(mode=0o700)
        short = len(tempfile.gettempdir()) <= SHORT_PATH
        runtime = Path(tempfile.mkdtemp(prefix=f"rouse-{key}-", dir=None if short else "/tmp"))  # noqa: S108
        folders = Folders(data, memory, runtime, key, shared)
        for kept in (folders.logs, folders.traces):
            kept.mkdir(exist_ok=True, mode=0o700)
        try:
            yield folders
        finally:
            shutil.rmtree(memory)
            shutil.rmtree(runtime)


def mesh_key(data: Path) -> str:
    """Names a data folder among the machine's meshes."""
    return hashlib.sha256(str(data.resolve()).encode()).hexdigest()[:8]


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = file.read().strip() or "unknown"
            raise MeshLocked(
                f"a mesh runs on {path.parent} already (pid {owner}); stop it, or use --data-dir"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            file.seek(0)
            file.truncate(0)


def leftovers(data: Path, key: str) -> list[Path]:
    """Folders of this mesh that live only as long as it runs."""
    runtime = [path for folder in {Path(tempfile.gettempdir()), Path("/tmp")} for path in folder.glob(f"rouse-{key}-*")]  # noqa: S108
    found = [_shared_folder(key), data / "memory", *runtime]
    return [path for path in found if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()]


def tagged(key: str) -> list[psutil.Process]:
    """Processes that belong to the mesh, this one's descendants or not."""
    found = []
    for process in psutil.process_iter():
        # Gone by now, or somebody else's.
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(TAG) == key:
                found.append(process)
    return found


def end_leftovers(key: str) -> None:
    """Ends processes that a killed owner of the data folder left; they are ending by themselves by then."""
    processes = tagged(key)
    if not processes:
        return
    LOG.warning("ending %d processes that an earlier run left", len(processes))
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended a moment ago
                process.send_signal(number)
        processes = still_running(processes, END_TIMEOUT_S)


def still_running(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Waits until processes end; returns those that have not after `timeout_s`.

    A zombie has ended: where nobody collects orphans, as in many containers, it stays for good.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        processes = [process for process in processes if _runs(process)]
        if not processes or time.monotonic() > deadline:
            return processes
        time.sleep(POLL_S)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def prune_traces(folder: Path, *, max_bytes: int = TRACE_BYTES, max_files: int = TRACE_FILES) -> None:
    """Removes the oldest trace files past a total size or number. Each process bounds its own file."""
    rows = []
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # replaced a moment ago by its owner
            stat = path.stat()
            rows.append((stat.st_mtime, stat.st_size, path))
    total = 0
    for number, (_, size, path) in enumerate(sorted(rows, reverse=True), start=1):
        total += size
        if total > max_bytes or number > max_files:
            path.unlink(missing_ok=True)


def _shared_folder(key: str) -> Path:
    return SHARED_MEMORY / f"rouse-{os.getuid()}-{key}"
