"""A filter of system calls that no function has business with: other processes' memory, mounts, the kernel itself.

A classic BPF program made by hand: load the architecture, load the number, compare. What is refused fails with
EPERM; what libraries try and go on without fails with ENOSYS.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from rouse_runtime.isolation import kernel

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000

# Numbers by name, x86_64 and aarch64 (asm-generic).
REFUSED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "setns": (308, 268),
    "unshare": (272, 97), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "syslog": (103, 116), "vhangup": (153, 58),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
}  # fmt: skip
# io_uring would make system calls that no filter sees; clone3 hides its flags from filters, and libraries know clone.
ABSENT = {"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "clone3": (435, 435)}  # fmt: skip  # noqa: E501
CLONE = (56, 220)
SOCKET = (41, 198)
# New namespaces of every kind.
CLONE_NAMESPACES = 0x7E020080
AF_UNIX = 1

LOAD_WORD, JUMP_EQUAL, JUMP_SET, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
NUMBER, ARCHITECTURE, ARGUMENT_0 = 0, 4, 16
ALLOW, FAIL, KILL = 0x7FFF0000, 0x00050000, 0x80000000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def program(machine: str, *, network: bool) -> bytes:
    """The filter. Raises ValueError for a machine whose numbers are not known.

    Args:
        network: whether sockets other than Unix ones may be made.
    """
    column = list(ARCHITECTURES).index(machine)
    refuse, absent = _step(RETURN, FAIL | errno.EPERM), _step(RETURN, FAIL | errno.ENOSYS)
    steps = [
        _step(LOAD_WORD, ARCHITECTURE),
        _step(JUMP_EQUAL, ARCHITECTURES[machine], 1, 0),
        _step(RETURN, KILL),
        _step(LOAD_WORD, NUMBER),
    ]
    if machine == "x86_64":
        steps += [_step(JUMP_AT_LEAST, X32_BIT, 0, 1), refuse]
    for table, answer in ((REFUSED, refuse), (ABSENT, absent)):
        for numbers in table.values():
            number = numbers[column]
            if number is not None:
                steps += [_step(JUMP_EQUAL, number, 0, 1), answer]
    steps += [
        _step(JUMP_EQUAL, CLONE[column], 0, 4),
        _step(LOAD_WORD, ARGUMENT_0),
        _step(JUMP_SET, CLONE_NAMESPACES, 0, 1),
        refuse,
        _step(RETURN, ALLOW),
    ]
    if not network:
        steps += [
            _step(JUMP_EQUAL, SOCKET[column], 0, 4),
            _step(LOAD_WORD, ARGUMENT_0),
            _step(JUMP_EQUAL, AF_UNIX, 1, 0),
            refuse,
            _step(RETURN, ALLOW),
        ]
    return b"".join([*steps, _step(RETURN, ALLOW)])


def restrict(*, network: bool) -> str:
    """Filters the system calls of this thread and what it starts, for good; needs no_new_privs. Raises OSError."""
    try:
        code = program(kernel.machine(), network=network)
    except ValueError:
        raise OSError(errno.ENOSYS, f"no filter is known for {kernel.machine()}") from None
    made = _Program(len(code) // 8, code)
    kernel.prctl(
        kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, ctypes.byref(made), what="installing the system call filter"
    )
    return "seccomp" if network else "seccomp (no network)"
