"""How fast models come and go on a host device of this machine.

    python -m rouse_gpu_server.backends.measure --memory-dir /dev/shm/measure --size 400MiB

compares the device with a plain copy between two buffers that are in memory already, and with copying through
mappings of the same files instead of inside the kernel. Medians; each way takes its turn in every round.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rouse_common.config import parse_size
from rouse_gpu_server.backends import Segment
from rouse_gpu_server.backends.host import HostBackend
from rouse_gpu_server.state.ledger import round_up

ROUNDS = 7


def memmove(source: Path, segment: Segment) -> None:
    """The same copy through mappings of both files; a page fault for every page on either side."""
    with source.open("rb") as reading, segment.path.open("r+b") as writing:
        private = mmap.mmap(reading.fileno(), segment.size_bytes, access=mmap.ACCESS_COPY)
        shared = mmap.mmap(writing.fileno(), segment.size_bytes)
        to, start = ctypes.c_char.from_buffer(shared), ctypes.c_char.from_buffer(private)
        ctypes.memmove(ctypes.addressof(to), ctypes.addressof(start), segment.size_bytes)


def measure(folder: Path, size_bytes: int) -> dict[str, float]:
    """Median seconds of each step for a model of `size_bytes`, a multiple of the page size."""
    image = folder / "image"
    image.write_bytes(os.urandom(size_bytes))
    backend, taken = HostBackend("measured", folder / "device"), dict[str, list[float]]()
    first, second = bytearray(image.read_bytes()), bytearray(size_bytes)
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in (second, first)]

    def timed(name: str, action: Callable[[], object]) -> None:
        started = time.perf_counter()
        action()
        taken.setdefault(name, []).append(time.perf_counter() - started)

    for number in range(ROUNDS):
        timed("plain copy", lambda: ctypes.memmove(addresses[0], addresses[1], size_bytes))
        for way in ("copy", "copy by memmove"):
            name, made = f"{number} {way}", list[Segment]()
            timed("allocate", lambda name=name, made=made: made.append(backend.allocate("measure", name, size_bytes)))  # type: ignore[misc]
            segment = made[0]
            if way == "copy":
                timed(way, lambda segment=segment: backend.copy(image, segment, threading.Event(), lambda _: None))  # type: ignore[misc]
            else:
                timed(way, lambda segment=segment: memmove(image, segment))  # type: ignore[misc]
            timed("free", lambda segment=segment: backend.free(segment))  # type: ignore[misc]
    backend.forget("measure")
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="measures swapping on a host device of this machine")
    parser.add_argument("--memory-dir", default="/dev/shm", help="a folder on a tmpfs")  # noqa: S108
    parser.add_argument("--size", default="400MiB", help="size of the model")
    options = parser.parse_args()
    size = round_up(parse_size(options.size, "--size"))
    Path(options.memory_dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.memory_dir) as folder:
        seconds = measure(Path(folder), size)
    seconds["swap in (allocate, copy)"] = seconds["allocate"] + seconds["copy"]
    seconds["swap in by memmove"] = seconds["allocate"] + seconds["copy by memmove"]
    for name, taken in seconds.items():
        print(f"{name:28} {taken * 1000:8.1f} ms {size / 1e6 / taken:8.0f} MB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
