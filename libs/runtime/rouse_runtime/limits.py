"""How much memory a function may allocate in its instance."""

from __future__ import annotations

import resource

# The instance's own needs after loading: stacks of gRPC's threads, messages, copies of tensors.
OWN_BYTES = 128 << 20


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
