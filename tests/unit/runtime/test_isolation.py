"""The filter of system calls, read step by step; what an instance is shown; its words for ports."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from rouse_common.config import parse_ports
from rouse_runtime.isolation import seccomp
from rouse_runtime.isolation.view import outermost, view

READ = {"x86_64": 0, "aarch64": 63}
MACHINES = tuple(seccomp.ARCHITECTURES)


def run(code: bytes, architecture: int, number: int, argument: int = 0) -> int:
    """What the filter answers: the kernel's interpreter, as far as the filter needs one."""
    data = struct.pack("=IIQQ", number, architecture, 0, argument)
    steps = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    at = word = 0
    while True:
        operation, if_true, if_false, value = steps[at]
        at += 1
        if operation == seccomp.LOAD_WORD:
            word = struct.unpack_from("=I", data, value)[0]
        elif operation == seccomp.RETURN:
            return int(value)
        else:
            holds = {
                seccomp.JUMP_EQUAL: word == value,
                seccomp.JUMP_SET: bool(word & value),
                seccomp.JUMP_AT_LEAST: word >= value,
            }[operation]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_what_it_names_and_nothing_else(machine: str) -> None:
    code = seccomp.program(machine, network=True)
    assert len(code) // 8 < 4096, "the kernel takes no longer program"
    architecture, column = seccomp.ARCHITECTURES[machine], MACHINES.index(machine)
    named: dict[int | None, int] = {}
    for table, number in ((seccomp.REFUSED, errno.EPERM), (seccomp.ABSENT, errno.ENOSYS)):
        named |= {numbers[column]: seccomp.FAIL | number for numbers in table.values() if numbers[column] is not None}
    for number in range(500):
        expected = named.get(number, seccomp.ALLOW)
        assert run(code, architecture, number) == expected, number
    assert run(code, 0x40000003, READ[machine]) == seccomp.KILL
    clone = seccomp.CLONE[column]
    assert run(code, architecture, clone, 0x10000000) == seccomp.FAIL | errno.EPERM
    assert run(code, architecture, clone, 0x003D0F00) == seccomp.ALLOW, "threads"
    assert run(code, architecture, seccomp.SOCKET[column], 2) == seccomp.ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_without_network_only_unix_sockets_are_made(machine: str) -> None:
    code = seccomp.program(machine, network=False)
    architecture, number = seccomp.ARCHITECTURES[machine], seccomp.SOCKET[MACHINES.index(machine)]
    assert run(code, architecture, number, seccomp.AF_UNIX) == seccomp.ALLOW
    for family in (2, 10, 16, 17):
        assert run(code, architecture, number, family) == seccomp.FAIL | errno.EPERM


def test_an_instance_sees_python_and_what_it_is_granted(tmp_path: Path) -> None:
    art = tmp_path / "artefact"
    art.mkdir()
    seen = view([str(art), str(tmp_path / "gone")], str(tmp_path / "own"), {"LD_LIBRARY_PATH": f"{tmp_path}:relative:"})
    assert {str(art), str(tmp_path), "/usr"} <= set(seen.read)
    assert not {"/", "/etc", "/etc/shadow", "/root", "/home", "/var", "relative", str(tmp_path / "gone")} & set(
        seen.read
    )
    assert seen.write == (str(tmp_path / "own" / "tmp"),)


def test_what_lies_below_another_path_is_shown_with_it() -> None:
    assert outermost(["/usr/lib", "/usr", "/usrlocal", "/a/b", "/a"]) == ["/a", "/usr", "/usrlocal"]
    assert outermost(["/a-b", "/a", "/a/c"]) == ["/a", "/a-b"]


def test_ports_in_words() -> None:
    assert parse_ports("any") is None
    assert parse_ports("none") == ()
    assert parse_ports("53,443") == (53, 443)
    for bad in ("", "0", "65536", "80,", "٣", "all", ",".join("1" * 65)):
        with pytest.raises(ValueError, match="want any, none"):
            parse_ports(bad)
