"""What an instance gets to see of the machine: paths, by what it may do with them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin")
# What name resolution, certificates, time zones and the linker read; nothing that only root may read.
SETTINGS = tuple(
    f"/etc/{name}"
    for name in (
        "alternatives", "ca-certificates", "gai.conf", "group", "host.conf", "hosts", "ld.so.cache", "ld.so.conf",
        "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "os-release", "passwd", "pki", "protocols",
        "resolv.conf", "services", "ssl", "timezone",
    )
)  # fmt: skip
KERNEL = (
    "/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo", "/proc/stat", "/proc/sys", "/proc/uptime",
    "/proc/version", "/proc/vmstat", "/sys/devices/system", "/sys/kernel/mm/transparent_hugepage",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Of the instance's folder: for temporary files, and to build a root in.
TMP, ROOT = "tmp", "root"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the mount point that libraries expect


@dataclass(frozen=True)
class View:
    """Absolute paths that exist; of each, what is below as well.

    Attributes:
        read: read and execute.
        write: everything, in the instance's own folders.
        sockets: sockets may be made and removed here.
        devices: read and write, nothing below.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    sockets: tuple[str, ...]
    devices: tuple[str, ...] = DEVICES


def view(granted: Iterable[str], folder: str, environ: Mapping[str, str]) -> View:
    """Python, its libraries and the system's, what a function was granted, and its own folder."""
    python = [
        sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, os.path.dirname(sys.executable), *sys.path,
    ]  # fmt: skip
    libraries = environ.get("LD_LIBRARY_PATH", "").split(":")
    wanted = [*SYSTEM, *SETTINGS, *python, *libraries, *granted]
    read = [path for path in wanted if path.startswith("/") and path != "/" and os.path.exists(path)]
    devices = tuple(path for path in DEVICES if os.path.exists(path))
    return View(
        tuple(dict.fromkeys(os.path.normpath(path) for path in read)), (os.path.join(folder, TMP),), (folder,), devices
    )


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths that lie below no other of them, in order."""
    found: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split("/")):
        if not found or not path.startswith(found[-1] + "/"):
            found.append(path)
    return found
