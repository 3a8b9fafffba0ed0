"""What a mesh's node keeps in memory: pages of its processes, and files of shared memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

# The services of a node; templates, instances and native executors are their descendants.
NODE = ("rouse_gpu_server", "rouse_node_router", "rouse_coordinator")
MB = 1e6


@dataclass(frozen=True)
class Resident:
    """Memory of a node in MB.

    Args:
        own_mb: pages of its processes, each shared page counted once, without shared memory.
        shared_mb: files of its shared memory: images of weights, and what lies on devices.
        executor_mb: of the processes, in the native executors, shared memory and the devices' pools included.
        processes: how many there are.
    """

    own_mb: float
    shared_mb: float
    executor_mb: float
    processes: int


def resident(mesh: psutil.Process) -> Resident:
    """Of the only node of a mesh, whose services are children of `mesh`."""
    own = executor = 0.0
    services = [process for process in mesh.children() if any(name in process.cmdline() for name in NODE)]
    family = {p.pid: p for service in services for p in (service, *service.children(recursive=True))}
    for process in family.values():
        try:
            name, rollup = process.name(), _rollup(process.pid)
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            continue
        if name == "rouse-executor":
            executor += rollup["Pss"] / MB
        else:
            own += (rollup["Pss"] - rollup["Pss_Shmem"]) / MB
    memory = next((folder for service in services if (folder := _memory_dir(service)) is not None), None)
    return Resident(own, _files_mb(memory) if memory is not None else 0.0, executor, len(family))


def settled(mesh: psutil.Process, processes: int, limit_s: float = 60.0) -> Resident:
    """The same once the node has no more than so many processes. Raises TimeoutError."""
    until = time.monotonic() + limit_s
    while (found := resident(mesh)).processes > processes:
        if time.monotonic() > until:
            raise TimeoutError(f"the node has {found.processes} processes after {limit_s:.0f} s; want {processes}")
        time.sleep(0.5)
    return found


def _memory_dir(process: psutil.Process) -> Path | None:
    value = process.environ().get("ROUSE_GPU_SERVER_MEMORY_DIR")
    return Path(value) if value else None


def _rollup(pid: int) -> dict[str, int]:
    """Bytes by name, of /proc/PID/smaps_rollup."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        found[name] = int(value.split()[0]) * 1024
    return found


def _files_mb(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total / MB
