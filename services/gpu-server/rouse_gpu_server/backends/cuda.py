"""A CUDA device: its memory is its native executors', which fill it from host images. There are no segments."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from rouse_common.errors import Internal
from rouse_gpu_server.backends import Carry, Segment


class CudaBackend:
    """A device whose memory this process never touches. Functions that would need a segment are refused before they
    come to it (logic/leasing.py): one that does is a fault of ours.

    Args:
        folder: for instances, which are shown a folder of each device; nothing is ever in it.
    """

    kind = "cuda"

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)

    def folder(self, owner: str) -> Path:
        return self._folder

    def forget(self, owner: str) -> None:
        """Does nothing: there is one folder for all."""

    def allocate(self, owner: str, name: str, size_bytes: int) -> Segment:
        raise self._none()

    def copy(
        self,
        source: Path,
        segment: Segment,
        cancelled: threading.Event,
        progress: Callable[[int], None],
        carry: Carry | None = None,
    ) -> None:
        raise self._none()

    def free(self, segment: Segment) -> None:
        raise self._none()

    def purge(self) -> int:
        return 0

    def used_bytes(self) -> int:
        return 0

    def _none(self) -> Internal:
        return Internal("NO_SEGMENTS", f"device {self._name} is CUDA, and has no segments", device=self._name)
