"""What a process holds: threads, descriptors, memory; so that a test can say that it does not grow."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from rouse_testkit.mesh import Mesh

MIB = 1 << 20
# What an allocator keeps for the next time, and pools of threads that start one by one.
SLACK_MIB, SLACK_THREADS, SLACK_DESCRIPTORS = 48, 8, 8


@dataclass(frozen=True)
class Held:
    """Of one process at one time."""

    pid: int
    threads: int
    descriptors: int
    memory_mib: float


def held(pid: int) -> Held:
    """What a process holds now."""
    process = psutil.Process(pid)
    return Held(pid, process.num_threads(), process.num_fds(), process.memory_info().rss / MIB)


def check_flat(mesh: Mesh, before: Held) -> None:
    """Waits until a process of the mesh holds hardly more than before; fails where it does not come to that."""

    def flat() -> bool:
        now = held(before.pid)
        return (
            now.threads <= before.threads + SLACK_THREADS
            and now.descriptors <= before.descriptors + SLACK_DESCRIPTORS
            and now.memory_mib <= before.memory_mib + SLACK_MIB
        )

    mesh.wait_until(flat, f"process {before.pid} holds no more than {before}; now {held(before.pid)}", 30)
