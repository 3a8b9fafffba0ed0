"""Starts a program that ends with its parent, and as another user where it refuses to run as root.

Run as a script, `python -I -S launch.py PARENT_PID SIGNAL USER_ID -- PROGRAM ARGUMENT…`; it becomes the
program. USER_ID -1 keeps the user. Another user keeps two of root's capabilities, those that pass over
file permissions: without them it could not reach a data folder below root's home. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
KEPT = (1 << CAP_DAC_OVERRIDE) | (1 << CAP_DAC_READ_SEARCH)
FAILED = 126


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def become(libc: ctypes.CDLL, user: int) -> None:
    """Changes the user and group for good, keeping KEPT as ambient capabilities. Raises OSError."""
    _check(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "keeping capabilities")
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    header, data = _Header(CAPABILITY_VERSION_3, 0), (_Data * 2)(_Data(KEPT, KEPT, KEPT), _Data())
    _check(libc.capset(ctypes.byref(header), data), "setting capabilities")
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        _check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0), "raising capabilities")


def main() -> int:
    parent, number, user = (int(word) for word in sys.argv[1:4])
    program = sys.argv[5:]
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if user >= 0:
            try:
                become(libc, user)
            except OSError as error:
                print(
                    f"root cannot become user {user} here: {error}; {program[0]} refuses to run as root. Grant the "
                    "capabilities SETUID, SETGID, DAC_OVERRIDE and DAC_READ_SEARCH, or run the mesh as another user",
                    file=sys.stderr,
                )
                return FAILED
        # Only now: changing the user clears it.
        _check(libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0), "asking to end with the parent")
        if os.getppid() != parent:
            return 0  # it died before we asked
        os.execv(program[0], program)  # noqa: S606 - that is what this script is for
    except OSError as error:
        print(f"cannot start {program[0]}: {error}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
