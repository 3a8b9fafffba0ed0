"""The few system calls that Python has no names for."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from typing import Any

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
LAST_CAPABILITY = 63

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
# Since Linux 5.13, the same numbers everywhere.
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446

CAPABILITY_VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@functools.cache
def libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    return os.uname().machine


def check(result: int, what: str) -> int:
    """Raises OSError saying what failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: Any, what: str) -> int:
    """Raises OSError."""
    passed = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return check(libc().syscall(ctypes.c_long(number), *passed), what)


def prctl(option: int, *arguments: Any, what: str) -> int:
    """Raises OSError."""
    words = [ctypes.c_ulong(word) if isinstance(word, int) else word for word in (*arguments, 0, 0, 0, 0)[:4]]
    return check(libc().prctl(option, *words), what)


def unshare(flags: int) -> None:
    """Raises OSError."""
    check(libc().unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Raises OSError."""
    result = libc().mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    check(result, f"mount {target}")


def pivot_here() -> None:
    """Makes the working directory, a mount of its own, the root, and leaves nothing of the old one. Raises OSError."""
    number = SYS_PIVOT_ROOT.get(machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"pivot_root is not known for {machine()}")
    syscall(number, ctypes.c_char_p(b"."), ctypes.c_char_p(b"."), what="pivot_root")
    check(libc().umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")


def bound_capabilities() -> None:
    """No program that this process starts gets any back."""
    for capability in range(LAST_CAPABILITY + 1):
        # Without CAP_SETPCAP, or past the last that the kernel knows, there is nothing to drop.
        libc().prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)


def drop_capabilities() -> None:
    """Raises OSError."""
    number = SYS_CAPSET.get(machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"capset is not known for {machine()}")
    header, data = _Header(CAPABILITY_VERSION_3, 0), (_Data * 2)()
    syscall(number, ctypes.byref(header), ctypes.byref(data), what="capset")
