"""Whether a process of this machine is still there."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")
# Field 22 of /proc/PID/stat, counted behind the command's closing bracket; field 3 is the state.
START_TIME = 19
ENDED = ("Z", "X", "x")


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where there is none, or just its remains."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ENDED else int(fields[START_TIME])


def user(pid: int) -> int:
    """Whom a process runs as; 0 where it cannot be seen, and where it is root."""
    try:
        status = (PROC / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next(int(line.split()[2]) for line in status.splitlines() if line.startswith("Uid:"))


def is_gone(pid: int, started_at: int | None) -> bool:
    """Whether a process that was seen to start at `started_at` has ended.

    Where it was never visible (another pid namespace) nothing is known, and the answer is no.
    """
    return started_at is not None and start_time(pid) != started_at
