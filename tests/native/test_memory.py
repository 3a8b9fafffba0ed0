"""Device memory and swaps from Python: what the typed wrappers promise. The core's own tests are in native/tests."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rouse_native import built
from rouse_native.errors import NativeError

if not built():
    pytest.skip("the native core is not built here", allow_module_level=True)

from rouse_native.memory import (
    BLOCK_BYTES,
    MODEL_BASE,
    Device,
    HostImage,
    Link,
    Point,
    Range,
    Region,
    Space,
    Usage,
    elbow,
)

MIB = 1 << 20
CAPACITY = 32 * MIB


@pytest.fixture
def device() -> Device:
    return Device.host(CAPACITY)


@pytest.fixture
def space(device: Device) -> Iterator[Space]:
    """Gives its ranges back: a failed test's traceback would keep them, and every test has the same addresses."""
    made = Space(device)
    yield made
    for one in made.ranges():
        made.release(one.address)
    made.check()


def image_of(folder: Path, size: int) -> tuple[HostImage, bytes]:
    data = random.Random(size).randbytes(size)
    (folder / "model.img").write_bytes(data)
    return HostImage.open(str(folder / "model.img"), size), data


def test_a_range_has_memory_until_it_is_released(space: Space) -> None:
    space.reserve(MODEL_BASE, 3 * MIB, Region.MODEL)
    assert space.usage() == Usage(CAPACITY, CAPACITY - 4 * MIB, 4 * MIB, 0)
    space.map(MODEL_BASE)
    assert space.ranges() == [Range(MODEL_BASE, 4 * MIB, Region.MODEL, True)]
    view = space.view(MODEL_BASE, 4 * MIB)
    view[-1] = 7
    assert space.view(MODEL_BASE + 4 * MIB - 1, 1)[0] == 7
    space.release(MODEL_BASE)
    space.check()
    assert space.usage() == Usage(CAPACITY, CAPACITY, 0, 0)


def test_errors_carry_their_code(space: Space) -> None:
    with pytest.raises(NativeError) as told:
        space.reserve(MODEL_BASE, CAPACITY + 1, Region.MODEL)
    assert told.value.code == "EXHAUSTED"
    space.reserve(MODEL_BASE, MIB, Region.MODEL)
    with pytest.raises(NativeError, match="gave one address twice") as told:
        space.reserve(MODEL_BASE, MIB, Region.STATE)
    assert told.value.code == "MISMATCH"
    with pytest.raises(NativeError, match="not inside one mapped range"):
        space.view(MODEL_BASE, 1)
    with pytest.raises(NativeError, match="NOT_FOUND"):
        HostImage.open("/nowhere/model.img")
    with pytest.raises(NativeError, match="multiple of 2 MiB"):
        Device.host(5)


def test_a_swap_brings_the_image(device: Device, space: Space, tmp_path: Path) -> None:
    size = 6 * MIB + 17
    image, data = image_of(tmp_path, size)
    link = Link(device)
    space.reserve(MODEL_BASE, size, Region.MODEL)
    space.map(MODEL_BASE)
    swap = link.start(MODEL_BASE, image, order=[(5 * MIB, MIB), (0, 4096)], tables=[(MIB, 2 * MIB)])
    swap.wait_ready(MODEL_BASE + 5 * MIB, MIB, timeout_s=30)
    assert space.view(MODEL_BASE + 5 * MIB, MIB) == data[5 * MIB : 6 * MIB]
    swap.wait(timeout_s=30)
    assert swap.over
    assert swap.copied_bytes == size
    assert swap.is_ready(MODEL_BASE, size)
    assert swap.took_s > 0
    assert swap.waited_s >= 0
    assert swap.waits >= 0
    assert hashlib.sha256(space.view(MODEL_BASE, size)).digest() == hashlib.sha256(data).digest()


def test_rows_come_first_and_a_swap_can_be_cancelled(device: Device, space: Space, tmp_path: Path) -> None:
    size = 8 * MIB
    image, data = image_of(tmp_path, size)
    link = Link(device, bytes_per_second=2 * MIB)
    space.reserve(MODEL_BASE, size, Region.MODEL)
    space.map(MODEL_BASE)
    swap = link.start(MODEL_BASE, image, tables=[(0, size)])
    swap.wait_rows(MODEL_BASE, 1000, [8000, 3], timeout_s=30)
    assert space.view(MODEL_BASE + 8_000_000, 1000) == data[8_000_000:8_001_000]
    assert not swap.over
    assert not swap.is_ready(MODEL_BASE + 4 * MIB, BLOCK_BYTES)
    swap.cancel()
    with pytest.raises(NativeError) as told:
        swap.wait(timeout_s=30)
    assert told.value.code == "CANCELLED"
    with pytest.raises(NativeError, match="INVALID"):
        swap.wait_ready(MODEL_BASE + size, 1, timeout_s=1)


def test_the_curve_and_its_elbow(device: Device, space: Space, tmp_path: Path) -> None:
    image, _ = image_of(tmp_path, 4 * MIB)
    space.reserve(MODEL_BASE, image.size, Region.MODEL)
    space.map(MODEL_BASE)
    curve = device.measure_curve(MODEL_BASE, image, [64 << 10, MIB], rounds=3)
    assert [p.group_bytes for p in curve] == [64 << 10, MIB]
    assert all(p.bytes_per_second > 0 for p in curve)
    assert elbow([Point(1, 50.0), Point(2, 96.0), Point(4, 100.0)]) == 2
    assert elbow([]) == 0


def test_a_machine_without_a_gpu_says_so() -> None:
    try:
        device = Device.cuda()
    except NativeError as error:
        assert error.code in ("UNSUPPORTED", "NOT_FOUND")  # noqa: PT017 - where there is one, it works
    else:
        assert device.kind == "cuda"
