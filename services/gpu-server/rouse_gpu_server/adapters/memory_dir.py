"""The folders that gpu-server owns: what they must be, and that nobody else uses them."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from rouse_common.config import ConfigError

MOUNTS = Path("/proc/self/mounts")
MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")
LOCK = "gpu-server.lock"
# A predecessor that is just stopping is waited for.
LOCK_WAIT_S = 8.0
LOCK_RETRY_S = 0.1


def lock(folder: Path, what: str) -> int:
    """Makes the folder and locks it for this process; returns the open lock. Blocks for LOCK_WAIT_S at most.

    Raises ConfigError naming the setting where another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(handle)
                raise ConfigError(f"{what}={folder}: another gpu-server uses this folder; give each its own") from None
            time.sleep(LOCK_RETRY_S)


def filesystem(folder: Path) -> str:
    """Type of the filesystem that a folder lies on, as 'tmpfs'."""
    real = folder.resolve()
    best, kind = -1, ""
    for line in MOUNTS.read_text().splitlines():
        _, mount, fs, *_ = line.split(" ")
        point = Path(mount.encode().decode("unicode_escape"))
        if real.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fs
    return kind


def check_room(folder: Path, devices: dict[str, int], host_bytes: int, held_bytes: int) -> None:
    """Checks that the folder is memory and holds all devices and host copies at once.

    `held_bytes` are taken by our own files already. Raises ConfigError naming the settings to lower.
    """
    kind = filesystem(folder)
    if kind not in MEMORY_FILESYSTEMS:
        raise ConfigError(f"--memory-dir={folder}: lies on {kind or 'no known filesystem'}, want a tmpfs as /dev/shm")
    status = os.statvfs(folder)
    there = status.f_bavail * status.f_frsize + held_bytes
    wanted = sum(devices.values()) + host_bytes
    if wanted > there:
        parts = " + ".join(f"{name} {size >> 20} MiB" for name, size in devices.items())
        raise ConfigError(
            f"--memory-dir={folder}: devices ({parts}) and host copies (--host-memory {host_bytes >> 20} MiB) need "
            f"{wanted >> 20} MiB, but this tmpfs has {there >> 20} MiB left; lower --device or --host-memory by "
            f"{(wanted - there + 2**20 - 1) >> 20} MiB, or give the tmpfs more"
        )
