"""What every kind of device must do. A new backend joins by a row in BACKENDS."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rouse_common.errors import DataLoss, ResourceExhausted
from rouse_gpu_server.backends import CopyCancelled, DeviceBackend, Segment
from rouse_gpu_server.backends.host import CHUNK_BYTES, HostBackend
from rouse_gpu_server.backends.measure import measure

PAGE = 4096
BACKENDS: dict[str, Callable[[Path], DeviceBackend]] = {"host": lambda folder: HostBackend("d0", folder / "d0")}


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="rouse-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, folder: Path) -> DeviceBackend:
    return BACKENDS[request.param](folder)


def copy(backend: DeviceBackend, source: Path, segment: Segment) -> list[int]:
    seen: list[int] = []
    backend.copy(source, segment, threading.Event(), seen.append)
    return seen


@pytest.fixture
def image(folder: Path) -> Path:
    """Two chunks and a bit, different everywhere."""
    path = folder / "image"
    size = 2 * CHUNK_BYTES + PAGE
    path.write_bytes(b"".join(n.to_bytes(4, "little") for n in range(size // 4)))
    return path


def test_what_is_copied_is_what_an_executor_reads(backend: DeviceBackend, image: Path) -> None:
    size = image.stat().st_size
    segment = backend.allocate("art", "a", size)
    seen = copy(backend, image, segment)
    assert segment.path.read_bytes() == image.read_bytes()
    assert seen == sorted(seen)
    assert seen[-1] == size
    assert len(seen) >= 3, "progress is told chunk by chunk"


def test_memory_is_taken_by_allocating_and_given_back_by_freeing(backend: DeviceBackend) -> None:
    segment = backend.allocate("art", "a", 10 * PAGE)
    assert backend.used_bytes() == 10 * PAGE
    other = backend.allocate("art", "b", PAGE)
    assert backend.used_bytes() == 11 * PAGE
    backend.free(segment)
    assert backend.used_bytes() == PAGE
    backend.free(segment)
    backend.free(other)
    assert backend.used_bytes() == 0


def test_without_memory_nothing_is_taken(backend: DeviceBackend) -> None:
    with pytest.raises(ResourceExhausted) as full:
        backend.allocate("art", "a", 1 << 50)
    assert full.value.reason == "DEVICE_MEMORY_FULL"
    assert full.value.metadata["device"] == "d0"
    assert backend.used_bytes() == 0


def test_a_cancelled_copy_stops_between_chunks(backend: DeviceBackend, image: Path) -> None:
    segment = backend.allocate("art", "a", image.stat().st_size)
    cancelled = threading.Event()
    seen: list[int] = []

    def progress(done: int) -> None:
        seen.append(done)
        cancelled.set()

    with pytest.raises(CopyCancelled):
        backend.copy(image, segment, cancelled, progress)
    assert len(seen) == 1
    backend.free(segment)
    assert backend.used_bytes() == 0


def test_a_source_that_is_too_short_is_an_error(backend: DeviceBackend, folder: Path) -> None:
    short = folder / "short"
    short.write_bytes(bytes(PAGE))
    segment = backend.allocate("art", "a", 2 * PAGE)
    with pytest.raises(DataLoss) as lost:
        copy(backend, short, segment)
    assert lost.value.reason == "SOURCE_TRUNCATED"
    with pytest.raises(FileNotFoundError):
        copy(backend, folder / "absent", segment)


def test_a_name_is_taken_once(backend: DeviceBackend) -> None:
    backend.allocate("art", "a", PAGE)
    with pytest.raises(FileExistsError):
        backend.allocate("art", "a", PAGE)


def test_a_sibling_segment_is_a_source_too(backend: DeviceBackend, image: Path) -> None:
    first = backend.allocate("art", "a", image.stat().st_size)
    copy(backend, image, first)
    second = backend.allocate("art", "b", image.stat().st_size)
    copy(backend, first.path, second)
    assert second.path.read_bytes() == image.read_bytes()


def test_the_measurement_times_every_step(folder: Path) -> None:
    seconds = measure(folder, 4 * PAGE)
    assert set(seconds) == {"plain copy", "allocate", "copy", "copy by memmove", "free"}
    assert not list((folder / "device").iterdir())


def test_purging_empties_the_device(backend: DeviceBackend) -> None:
    backend.allocate("art", "a", 3 * PAGE)
    backend.allocate("art", "b", PAGE)
    assert backend.purge() == 4 * PAGE
    assert backend.used_bytes() == 0
    assert backend.purge() == 0
