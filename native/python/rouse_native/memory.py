"""Devices, ranges of addresses, host images, and swapping one into the other.

    device = Device.host(1 << 30)
    space, link = Space(device), Link(device)
    image = HostImage.open("/dev/shm/images/4f2a.img")
    space.reserve(MODEL_BASE, image.size, Region.MODEL)
    space.map(MODEL_BASE)
    swap = link.start(MODEL_BASE, image, order=[(0, 4096), (65536, 8192)])
    swap.wait_ready(MODEL_BASE, 4096, timeout_s=1.0)

Sizes and offsets are bytes, times are seconds. Everything raises NativeError with a code and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

try:
    from rouse_native import _memory
except ImportError as error:
    raise ImportError(
        f"the native core is not built ({error}); `make setup` builds it where a C++20 compiler is"
    ) from error

MODEL_BASE = _memory.MODEL_BASE
"""Where models' addresses begin, the same in every process on every node."""
BLOCK_BYTES = _memory.BLOCK_BYTES
"""What arrives is told in blocks of this size."""
DEFAULT_GROUP_BYTES = 2 << 20

Extents = Sequence[tuple[int, int]]
"""(offset, size) from the start of a model."""


class Region(IntEnum):
    """What a range is for."""

    MODEL = 0
    STATE = 1
    SCRATCH = 2


@dataclass(frozen=True)
class Usage:
    """Physical memory of a device. At every idle moment free + reserved + mapped = capacity."""

    capacity_bytes: int
    free_bytes: int
    reserved_bytes: int
    mapped_bytes: int


@dataclass(frozen=True)
class Range:
    """A range of addresses on a device, with memory; `size_bytes` is rounded up to the device's granularity."""

    address: int
    size_bytes: int
    region: Region
    mapped: bool


@dataclass(frozen=True)
class Point:
    """How fast copies in groups of one size are."""

    group_bytes: int
    bytes_per_second: float


class Device:
    """The memory of one device."""

    def __init__(self, native: _memory.Device) -> None:
        self._native = native

    @classmethod
    def host(cls, capacity_bytes: int, *, prefault: bool = False) -> Device:
        """A device whose memory is this process's. `prefault` takes all pages at once.

        Raises NativeError INVALID where the capacity is no multiple of 2 MiB, EXHAUSTED.
        """
        return cls(_memory.Device.host(capacity_bytes, prefault))

    @classmethod
    def cuda(cls, ordinal: int = 0, capacity_bytes: int = 0) -> Device:
        """A CUDA device; capacity 0 is what is free on it.

        Raises NativeError UNSUPPORTED without a driver, NOT_FOUND without that device.
        """
        return cls(_memory.Device.cuda(ordinal, capacity_bytes))

    @property
    def kind(self) -> str:
        return self._native.kind

    @property
    def description(self) -> str:
        return self._native.description

    @property
    def granularity_bytes(self) -> int:
        return self._native.granularity

    def usage(self) -> Usage:
        return Usage(*self._native.usage())

    def measure_curve(self, to: int, image: HostImage, sizes: Sequence[int], rounds: int = 5) -> list[Point]:
        """Copies an image to a mapped range in groups of each size; the fastest of `rounds`."""
        return [Point(*point) for point in self._native.measure_curve(to, image._native, list(sizes), rounds)]

    def pin(self, image: HostImage) -> object:
        """Keeps an image's pages where they are while what this returns lives: the device copies them faster.

        Raises NativeError where the device or the machine cannot.
        """
        return self._native.pin(image._native)


class Space:
    """The ranges on a device."""

    def __init__(self, device: Device) -> None:
        self._native = _memory.Space(device._native)

    def reserve(self, address: int, size_bytes: int, region: Region) -> None:
        """Takes addresses and physical memory, all or nothing.

        Raises NativeError MISMATCH where the addresses are not to be had, EXHAUSTED where the memory is not.
        """
        self._native.reserve(address, size_bytes, int(region))

    def map(self, address: int) -> None:
        """Puts the memory under a reserved range. What is in it is undefined."""
        self._native.map(address)

    def release(self, address: int) -> None:
        """Gives a range and its memory back. Nobody may use it any more."""
        self._native.release(address)

    def trim(self) -> None:
        """Gives chunks that are kept for later back to the device."""
        self._native.trim()

    def usage(self) -> Usage:
        return Usage(*self._native.usage())

    def check(self) -> None:
        """Raises NativeError FAILED where the account does not add up."""
        self._native.check()

    def ranges(self) -> list[Range]:
        return [Range(address, size, Region(region), m) for address, size, region, m in self._native.ranges()]

    def view(self, address: int, size_bytes: int) -> memoryview:
        """The bytes of a mapped range of a host device. Not to be used after `release`, which is not noticed."""
        return self._native.view(address, size_bytes)


class HostImage:
    """A model's host copy, mapped read-only from a file on a tmpfs."""

    def __init__(self, native: _memory.HostImage) -> None:
        self._native = native

    @classmethod
    def open(cls, path: str, expected_bytes: int = 0) -> HostImage:
        """Raises NativeError NOT_FOUND, INVALID, or MISMATCH where it has not the size expected (0: any)."""
        return cls(_memory.HostImage.open(path, expected_bytes))

    @property
    def address(self) -> int:
        """Where it is mapped in this process."""
        return self._native.address

    @property
    def size(self) -> int:
        return self._native.size


class Swap:
    """One model on its way in. Get one by `Link.start`."""

    def __init__(self, native: _memory.Swap) -> None:
        self._native = native

    def wait(self, timeout_s: float) -> None:
        """Waits until it is over. Raises NativeError DEADLINE, CANCELLED, or what failed."""
        self._native.wait(timeout_s)

    def cancel(self) -> None:
        """It ends soon; `wait` says when."""
        self._native.cancel()

    def is_ready(self, address: int, size_bytes: int) -> bool:
        return self._native.is_ready(address, size_bytes)

    def wait_ready(self, address: int, size_bytes: int, timeout_s: float) -> None:
        """Waits for the bytes that an operation reads; they come before the rest of the plan.

        Raises NativeError INVALID outside of the model, DEADLINE, CANCELLED, or what failed.
        """
        self._native.wait_ready(address, size_bytes, timeout_s)

    def wait_rows(self, table: int, row_bytes: int, rows: Sequence[int], timeout_s: float) -> None:
        """Waits for rows of the table whose row 0 is at address `table`."""
        self._native.wait_rows(table, row_bytes, list(rows), timeout_s)

    @property
    def over(self) -> bool:
        return self._native.over

    @property
    def copied_bytes(self) -> int:
        return self._native.copied_bytes

    @property
    def took_s(self) -> float:
        """Since its start, until it was over."""
        return self._native.took_s

    @property
    def waits(self) -> int:
        """How often an operation had to wait."""
        return self._native.waits

    @property
    def waited_s(self) -> float:
        """How long operations waited together."""
        return self._native.waited_s


class Link:
    """What copies into a device, one thread; several swaps share it by weight."""

    def __init__(self, device: Device, *, bytes_per_second: int = 0, quantum_bytes: int = 2 << 20) -> None:
        """`bytes_per_second` limits it, as a topology for tests and laptops says; 0: as fast as it goes."""
        self._native = _memory.Link(device._native, bytes_per_second, quantum_bytes)

    def start(
        self,
        address: int,
        image: HostImage,
        *,
        order: Extents = (),
        tables: Extents = (),
        group_bytes: int = DEFAULT_GROUP_BYTES,
        weight: int = 1,
    ) -> Swap:
        """Begins to copy an image to a mapped range.

        Args:
            order: what operations read, in the order of their first use.
            tables: what is read by rows; copied last.
            group_bytes: what is copied before anybody is told; 0: one group an entry of `order`.
            weight: share of the link.
        """
        return Swap(self._native.start(address, image._native, list(order), list(tables), group_bytes, weight))


def elbow(curve: Sequence[Point], share: float = 0.95) -> int:
    """The smallest group that copies at `share` of the fastest; 0 without points. Torpor's group size."""
    return _memory.elbow([(p.group_bytes, p.bytes_per_second) for p in curve], share)
