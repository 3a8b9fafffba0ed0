"""What a function's process may take of the machine."""

from __future__ import annotations

import resource
from dataclasses import dataclass

# The instance's own needs after loading: stacks of gRPC's threads, messages, copies of tensors.
OWN_BYTES = 128 << 20
MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Attributes:
    processes: processes and threads.
    files: open at once.
    file_bytes: size of any file that it writes.
    """

    processes: int
    files: int
    file_bytes: int


def apply(limits: Limits, *, count_processes: bool) -> str:
    """Limits this process and what it starts; in words. Raises OSError.

    Args:
        count_processes: whether the user's processes are all the instance's own.
    """
    words = [f"{limits.files} files", f"{limits.file_bytes // MIB} MiB a file"]
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, limits.files)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    if count_processes:
        _lower(resource.RLIMIT_NPROC, limits.processes)
        words.insert(0, f"{limits.processes} processes")
    return f"limits: {', '.join(words)}"


def _lower(kind: int, value: int) -> None:
    """Soft and hard, never above what holds already."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def limit_memory(limit_bytes: int) -> None:
    """Lets this process allocate `limit_bytes` more than it has now; 0 is no limit.

    To be called when the libraries are imported and the weights are mapped, so that neither counts, and before any
    code of the user runs. The kernel counts private writable memory (RLIMIT_DATA); past it, allocations fail.
    """
    if limit_bytes:
        total = allocated_bytes() + OWN_BYTES + limit_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (total, total))


def allocated_bytes() -> int:
    """What the kernel counts of this process now."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024
