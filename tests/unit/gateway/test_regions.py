"""System shared memory: what may be registered, whose it is, and what happens when clients change their minds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rouse_common.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    RouseError,
)
from rouse_gateway.oip.regions import Regions
from rouse_gateway.oip.requests import Place

MOST, LARGEST = 4, 4 << 20


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Regions]:
    (tmp_path / "memory").write_bytes(bytes(range(64)))
    (tmp_path / "large").write_bytes(b"a" * (8 << 20))
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "memory")
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    regions = Regions(MOST, LARGEST, tmp_path)
    yield regions
    regions.close()
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"


async def test_what_is_written_is_what_is_read(regions: Regions, tmp_path: Path) -> None:
    regions.register("", "r", "/memory", 8, 32)
    assert await regions.read("", Place("r", 2, 4)) == bytes([10, 11, 12, 13])
    await regions.write("", Place("r", 0, 8), memoryview(b"abc"))
    assert (tmp_path / "memory").read_bytes()[7:13] == b"\x07abc\x0b\x0c"
    status = regions.status("", "").regions["r"]
    assert (status.name, status.key, status.offset, status.byte_size) == ("r", "/memory", 8, 32)
    regions.unregister("", "r")
    assert not regions.status("", "").regions


async def test_large_tensors_are_copied_beside_the_event_loop(regions: Regions, tmp_path: Path) -> None:
    regions.register("", "r", "large", 0, 8 << 20)
    assert await regions.read("", Place("r", 0, LARGEST)) == b"a" * LARGEST
    await regions.write("", Place("r", 0, LARGEST), b"b" * LARGEST)
    assert (tmp_path / "large").read_bytes() == b"b" * LARGEST + b"a" * LARGEST
    with pytest.raises(InvalidArgument, match="larger than a message"):
        await regions.read("", Place("r", 0, LARGEST + 1))


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "..",
        "/..",
        "../memory",
        "a/b",
        "//memory",
        "memory\0",
        "me mory",
        ".hidden",
        "ü",
        "m" * 256,
        "/etc/passwd",
    ],
)
def test_keys_that_are_no_names_are_refused(regions: Regions, key: str) -> None:
    with pytest.raises(InvalidArgument, match="key"):
        regions.register("", "r", key, 0, 1)


BAD: dict[str, tuple[Callable[[Regions], object], type[RouseError], str]] = {
    "not there": (lambda r: r.register("", "r", "nothing", 0, 1), NotFound, "Unable to open"),
    "a folder": (lambda r: r.register("", "r", "folder", 0, 1), InvalidArgument, "cannot be opened"),
    "a symbolic link": (lambda r: r.register("", "r", "link", 0, 1), InvalidArgument, "cannot be opened"),
    "a pipe": (lambda r: r.register("", "r", "pipe", 0, 1), InvalidArgument, "no shared memory"),
    "past the end": (lambda r: r.register("", "r", "memory", 60, 5), InvalidArgument, "Invalid offset and byte size"),
    "nothing of it": (lambda r: r.register("", "r", "memory", 0, 0), InvalidArgument, "Invalid offset and byte size"),
    "more than a file may be": (
        lambda r: r.register("", "r", "memory", 2**64 - 1, 2**64 - 1),
        InvalidArgument,
        "Invalid offset",
    ),
    "no name": (lambda r: r.register("", "", "memory", 0, 1), InvalidArgument, "name"),
    "a long name": (lambda r: r.register("", "n" * 257, "memory", 0, 1), InvalidArgument, "name"),
    "an unknown one's status": (lambda r: r.status("", "r"), NotFound, "Unable to find"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_registered_says_why(regions: Regions, what: str) -> None:
    action, kind, words = BAD[what]
    with pytest.raises(kind, match=words):
        action(regions)
    assert not regions.status("", "").regions


def test_names_are_taken_once_and_their_number_is_bounded(regions: Regions) -> None:
    for number in range(MOST):
        regions.register("", str(number), "memory", 0, 1)
    with pytest.raises(AlreadyExists):
        regions.register("", "0", "memory", 0, 1)
    with pytest.raises(ResourceExhausted):
        regions.register("", "more", "memory", 0, 1)
    regions.unregister("", "0")
    regions.unregister("", "0")
    regions.register("", "more", "memory", 0, 1)
    regions.unregister("", "")
    assert not regions.status("", "").regions


def test_shared_memory_can_be_turned_off(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="turned off"):
        Regions(0, LARGEST, tmp_path).register("", "r", "memory", 0, 1)


async def test_tenants_do_not_see_each_other_s_regions(regions: Regions) -> None:
    regions.register("a", "r", "memory", 0, 8)
    with pytest.raises(NotFound):
        await regions.read("b", Place("r", 0, 1))
    with pytest.raises(NotFound):
        regions.status("b", "r")
    with pytest.raises(PermissionDenied):
        regions.register("b", "mine", "/memory", 0, 8)
    regions.register("b", "r", "large", 0, 8)
    regions.unregister("b", "")
    assert list(regions.status("a", "").regions) == ["r"]
    regions.unregister("a", "r")
    regions.register("b", "mine", "/memory", 0, 8)


@pytest.mark.parametrize("place", [Place("r", 0, 9), Place("r", 8, 1), Place("r", 2**63, 2**63)])
async def test_a_place_outside_of_its_region_is_refused(regions: Regions, place: Place) -> None:
    regions.register("", "r", "memory", 0, 8)
    with pytest.raises(InvalidArgument, match="not within"):
        await regions.read("", place)
    with pytest.raises(InvalidArgument, match="not within"):
        await regions.write("", place, b"a")


async def test_an_output_that_is_too_large_for_its_place_is_refused(regions: Regions, tmp_path: Path) -> None:
    regions.register("", "r", "memory", 0, 8)
    with pytest.raises(InvalidArgument, match="too small"):
        await regions.write("", Place("r", 0, 2), b"abc")
    assert (tmp_path / "memory").read_bytes() == bytes(range(64))


async def test_memory_that_its_client_shortens_is_an_error_and_no_crash(regions: Regions, tmp_path: Path) -> None:
    regions.register("", "r", "memory", 0, 64)
    os.truncate(tmp_path / "memory", 4)
    with pytest.raises(InvalidArgument, match="shorter"):
        await regions.read("", Place("r", 0, 8))
    with pytest.raises(InvalidArgument, match="shorter"):
        await regions.write("", Place("r", 0, 8), b"12345678")
    assert (tmp_path / "memory").stat().st_size == 4, "it is not made longer again"


async def test_a_region_that_is_unregistered_while_it_is_read_stays_until_then(regions: Regions) -> None:
    regions.register("", "r", "large", 0, LARGEST)
    reading = asyncio.ensure_future(regions.read("", Place("r", 0, LARGEST)))
    await asyncio.sleep(0)
    regions.unregister("", "r")
    assert len(await reading) == LARGEST
