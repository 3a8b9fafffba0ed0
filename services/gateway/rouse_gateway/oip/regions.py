"""System shared memory: regions that clients on this machine register, to hand tensors over in.

A region is read and written by its descriptor, never mapped: a client that shortens its file would otherwise end
this process by a bus error.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rouse_common.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
)
from rouse_contracts import inference
from rouse_contracts.wire import Buffer
from rouse_gateway.oip.requests import Place

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the machine's shared memory is what is meant
# What shm_open takes: one name, perhaps with a slash before it.
KEY = re.compile(r"/?(?P<name>[A-Za-z0-9_][A-Za-z0-9._-]{0,254})", re.ASCII)
MAX_NAME_LENGTH = 256
# Copying more than this holds the event loop up.
HEAVY_BYTES = 1 << 20

RegionStatus = inference.SystemSharedMemoryStatusResponse.RegionStatus


@dataclass
class _Region:
    tenant: str
    name: str
    key: str
    offset: int
    size: int
    descriptor: int
    users: int = 0
    gone: bool = False


class Regions:
    """The registered regions; each tenant has names of its own.

    Args:
        most: regions at once, of all tenants; 0 turns the extension off.
        max_read_bytes: the largest tensor that is read from a region.
        folder: where keys are names of files.
    """

    def __init__(self, most: int, max_read_bytes: int, folder: Path = SHARED_MEMORY) -> None:
        self._most = most
        self._max_read_bytes = max_read_bytes
        self._folder = folder
        self._regions: dict[tuple[str, str], _Region] = {}

    def register(self, tenant: str, name: str, key: str, offset: int, size: int) -> None:
        """Registers bytes `offset` to `offset + size` of the shared memory `key` as the region `name`.

        Raises AlreadyExists, InvalidArgument BAD_SHARED_MEMORY, NotFound SHARED_MEMORY_NOT_FOUND where there is no
        such memory, PermissionDenied where it is another tenant's, ResourceExhausted TOO_MANY_REGIONS.
        """
        found = KEY.fullmatch(key)
        if not name or len(name) > MAX_NAME_LENGTH:
            raise _bad(f"a region's name has 1 to {MAX_NAME_LENGTH} characters, not {len(name)}", name)
        if found is None:
            raise _bad(f"region '{name}': key '{key[:80]}' names no shared memory; want one name, as /input_data", name)
        if (tenant, name) in self._regions:
            raise AlreadyExists(
                "REGION_EXISTS",
                f"shared memory region '{name}' already in manager: unregister it first, or take another name",
                region=name,
            )
        if len(self._regions) >= self._most:
            raise self._full()
        key = found["name"]
        if any(other.key == key and other.tenant != tenant for other in self._regions.values()):
            raise PermissionDenied(
                "REGION_OF_ANOTHER_TENANT", f"region '{name}': key '{key}' is registered by somebody else", region=name
            )
        descriptor = self._open(name, key, offset, size)
        self._regions[tenant, name] = _Region(tenant, name, key, offset, size, descriptor)

    def unregister(self, tenant: str, name: str) -> None:
        """Forgets a region; with an empty name all of the tenant. One that is not there is forgotten already."""
        names = [name] if name else [known for owner, known in self._regions if owner == tenant]
        for each in names:
            region = self._regions.pop((tenant, each), None)
            if region is not None:
                region.gone = True
                _close_unused(region)

    def close(self) -> None:
        """Forgets every region."""
        for tenant, name in list(self._regions):
            self.unregister(tenant, name)

    def status(self, tenant: str, name: str) -> inference.SystemSharedMemoryStatusResponse:
        """A region of the tenant; with an empty name all of them. Raises NotFound."""
        found = [self._region(tenant, name)] if name else [r for r in self._regions.values() if r.tenant == tenant]
        return inference.SystemSharedMemoryStatusResponse(
            regions={
                region.name: RegionStatus(
                    name=region.name, key=f"/{region.key}", offset=region.offset, byte_size=region.size
                )
                for region in found
            }
        )

    async def read(self, tenant: str, place: Place) -> bytes:
        """The bytes at `place`. Raises NotFound, InvalidArgument BAD_SHARED_MEMORY."""
        self.check(tenant, place)
        if place.size > self._max_read_bytes:
            raise _bad(
                f"a tensor of {place.size} bytes in region '{place.region}' is larger than a message may be, "
                f"{self._max_read_bytes} bytes",
                place.region,
            )
        with self._used(tenant, place.region) as region:
            work = (region.descriptor, place.size, region.offset + place.offset)
            data = await asyncio.to_thread(_read, *work) if place.size > HEAVY_BYTES else _read(*work)
        if len(data) < place.size:
            raise _shrunk(place.region)
        return data

    async def write(self, tenant: str, place: Place, data: Buffer) -> None:
        """Puts a tensor's bytes at `place`. Raises NotFound, InvalidArgument BAD_SHARED_MEMORY where they do not
        fit."""
        self.check(tenant, place)
        if len(data) > place.size:
            raise _bad(
                f"an output has {len(data)} bytes, its place in region '{place.region}' {place.size}: "
                "shared memory size specified with the request is too small",
                place.region,
            )
        with self._used(tenant, place.region) as region:
            start = region.offset + place.offset
            if os.fstat(region.descriptor).st_size < start + len(data):  # writing would make it longer
                raise _shrunk(place.region)
            work = (region.descriptor, data, start)
            if len(data) > HEAVY_BYTES:
                await asyncio.to_thread(_write, *work)
            else:
                _write(*work)

    def check(self, tenant: str, place: Place) -> None:
        """Says whether `place` is within its region. Raises NotFound, InvalidArgument BAD_SHARED_MEMORY."""
        region = self._region(tenant, place.region)
        if place.offset + place.size > region.size:
            raise _bad(
                f"{place.size} bytes at {place.offset} are not within region '{place.region}' of {region.size} bytes",
                place.region,
            )

    def _region(self, tenant: str, name: str) -> _Region:
        region = self._regions.get((tenant, name))
        if region is None:
            raise NotFound(
                "REGION_NOT_FOUND",
                f"Unable to find system shared memory region: '{name[:80]}'; register it first",
                region=name[:80],
            )
        return region

    @contextmanager
    def _used(self, tenant: str, name: str) -> Iterator[_Region]:
        """The region, which stays open within the block though it is unregistered meanwhile."""
        region = self._region(tenant, name)
        region.users += 1
        try:
            yield region
        finally:
            region.users -= 1
            _close_unused(region)

    def _full(self) -> ResourceExhausted | FailedPrecondition:
        if not self._most:
            return FailedPrecondition(
                "SHARED_MEMORY_OFF", "shared memory is turned off here; send the tensors within the requests"
            )
        return ResourceExhausted(
            "TOO_MANY_REGIONS", f"{self._most} regions are registered already; unregister those that are done with"
        )

    def _open(self, name: str, key: str, offset: int, size: int) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self._folder / key, flags)
        except FileNotFoundError:
            raise NotFound(
                "SHARED_MEMORY_NOT_FOUND",
                f"region '{name}': Unable to open shared memory region: '{key}'; it must be made on this machine first",
                region=name,
            ) from None
        except OSError as error:
            raise _bad(f"region '{name}': shared memory '{key}' cannot be opened: {error.strerror}", name) from None
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise _bad(f"region '{name}': '{key}' is no shared memory", name)
            if size <= 0 or offset < 0 or offset + size > found.st_size:
                raise _bad(
                    f"region '{name}': Invalid offset and byte size: {size} bytes at {offset} are not within the "
                    f"{found.st_size} bytes of shared memory '{key}'",
                    name,
                )
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _bad(text: str, region: str) -> InvalidArgument:
    return InvalidArgument("BAD_SHARED_MEMORY", text, region=region[:80])


def _shrunk(region: str) -> InvalidArgument:
    return _bad(f"region '{region[:80]}' has become shorter than it was registered", region)


def _close_unused(region: _Region) -> None:
    if region.gone and not region.users and region.descriptor >= 0:
        os.close(region.descriptor)
        region.descriptor = -1


def _read(descriptor: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes; fewer only at the file's end."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


def _write(descriptor: int, data: Buffer, offset: int) -> None:
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)
