"""What a kind of device must be able to do. One conformance suite runs against every implementation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias


@dataclass(frozen=True)
class Segment:
    """Device memory that holds one model.

    Args:
        path: what an instance maps.
        in_core: the memory is the native executor's, which fills it from `path`, the host image, beside the operators
            that wait for it; a backend has nothing of it.
    """

    path: Path
    size_bytes: int
    in_core: bool = False


class CopyCancelled(Exception):
    """The copy was told to stop; what it has written is worthless."""


# Waits until links have carried so many bytes, or raises CopyCancelled once the event is set.
Carry: TypeAlias = Callable[[int, threading.Event], None]


class DeviceBackend(Protocol):
    """The memory of one device. Methods block and release the GIL: call them from threads."""

    kind: str

    def folder(self, owner: str) -> Path:
        """Where the segments of an artefact lie and nothing else; made if absent, and stays until `forget`."""
        ...

    def forget(self, owner: str) -> None:
        """Removes an artefact's folder, if it is empty."""
        ...

    def allocate(self, owner: str, name: str, size_bytes: int) -> Segment:
        """Takes physical memory for a model, all or nothing. `name` is unique on the device.

        Raises ResourceExhausted DEVICE_MEMORY_FULL where the machine has no more of it.
        """
        ...

    def copy(
        self,
        source: Path,
        segment: Segment,
        cancelled: threading.Event,
        progress: Callable[[int], None],
        carry: Carry | None = None,
    ) -> None:
        """Fills a segment from a file, in bounded chunks; `progress` is told the bytes copied so far.

        `carry` takes as long for a chunk as the links that it passes. Raises CopyCancelled soon after `cancelled` is
        set; DataLoss SOURCE_TRUNCATED.
        """
        ...

    def free(self, segment: Segment) -> None:
        """Gives the memory back. Nobody may have it mapped. Freeing twice succeeds."""
        ...

    def purge(self) -> int:
        """Frees everything on the device, as after a crash. Returns the bytes freed."""
        ...

    def used_bytes(self) -> int:
        """Physical memory that segments take, as the machine counts it."""
        ...
