"""Landlock: the kernel refuses this process every file and TCP port that it was not given. Needs no privileges.

Numbers and layouts are those of `linux/landlock.h`; what a kernel knows is told by its ABI version.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from rouse_runtime.isolation import kernel
from rouse_runtime.isolation.view import KERNEL, SHARED_MEMORY, View

VERSION_FLAG = 1
RULE_PATH, RULE_PORT = 1, 2

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_FILE, MAKE_SOCK = 1 << 5, 1 << 9
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
BIND_TCP, CONNECT_TCP = 1, 2
SCOPES = 3  # abstract Unix sockets, signals
READING = EXECUTE | READ_FILE | READ_DIR
# What makes sense for a file; the rest is for folders.
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
# By ABI version, rights to files that came with it.
ADDED = {1: (1 << 13) - 1, 2: REFER, 3: TRUNCATE, 5: IOCTL_DEV}
PORTS_ABI, SCOPES_ABI = 4, 6


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("ports", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _PortRule(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


def abi() -> int:
    """The kernel's version of Landlock; 0 where it has none or it is turned off."""
    try:
        return kernel.syscall(kernel.LANDLOCK_CREATE_RULESET, 0, 0, VERSION_FLAG, what="landlock")
    except OSError:
        return 0


def restrict(view: View, ports: Iterable[int] | None) -> str:
    """Confines this thread and what it starts; needs no_new_privs. Returns what is confined, in words.

    Args:
        ports: TCP ports that may be connected to; None: any. Listening on TCP is refused where ports are.

    Raises OSError.
    """
    version = abi()
    if not version:
        raise OSError(0, "the kernel has no Landlock")
    rights = 0
    for since, added in ADDED.items():
        rights |= added if version >= since else 0
    with_ports = ports is not None and version >= PORTS_ABI
    scoped = SCOPES if version >= SCOPES_ABI else 0
    attributes = _Ruleset(rights, BIND_TCP | CONNECT_TCP if with_ports else 0, scoped)
    size = 24 if version >= SCOPES_ABI else 16 if version >= PORTS_ABI else 8
    ruleset = kernel.syscall(
        kernel.LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), size, 0, what="landlock_create_ruleset"
    )
    try:
        for path in (*view.read, *KERNEL, "/proc/self"):
            _allow(ruleset, path, READING & rights)
        for path in (*view.write, SHARED_MEMORY):
            # The machine's own shared memory belongs to everybody; only a root of our own has a private one.
            if path != SHARED_MEMORY or _is_ours(path):
                _allow(ruleset, path, rights & ~IOCTL_DEV)
        for path in view.sockets:
            _allow(ruleset, path, (MAKE_SOCK | REMOVE_FILE) & rights)
        for path in view.devices:
            _allow(ruleset, path, (READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV) & rights)
        for port in ports or () if with_ports else ():
            rule = _PortRule(CONNECT_TCP, port)
            kernel.syscall(
                kernel.LANDLOCK_ADD_RULE, ruleset, RULE_PORT, ctypes.byref(rule), 0, what=f"landlock port {port}"
            )
        kernel.syscall(kernel.LANDLOCK_RESTRICT_SELF, ruleset, 0, what="landlock_restrict_self")
    finally:
        os.close(ruleset)
    parts = ["files", *(["tcp ports"] if with_ports else []), *(["signals"] if scoped else [])]
    return f"landlock {version} ({', '.join(parts)})"


def _is_ours(path: str) -> bool:
    return os.path.isdir(path) and os.stat(path).st_uid == os.geteuid() and not os.stat(path).st_mode & stat.S_IRWXO


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # what is not there, or not for us, needs no rule
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            rights &= FILE_RIGHTS
        rule = _PathRule(rights, parent)
        kernel.syscall(kernel.LANDLOCK_ADD_RULE, ruleset, RULE_PATH, ctypes.byref(rule), 0, what=f"landlock {path}")
    finally:
        os.close(parent)
