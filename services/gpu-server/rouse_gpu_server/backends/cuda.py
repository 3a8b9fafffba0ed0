"""A CUDA device: its memory is its native executors', which fill it from host images. There are no segments."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from rouse_common.errors import Unimplemented
from rouse_gpu_server.backends import Carry, Segment


class CudaBackend:
    """A device whose memory this process never touches.

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
        raise self.plain()

    def copy(
        self,
        source: Path,
        segment: Segment,
        cancelled: threading.Event,
        progress: Callable[[int], None],
        carry: Carry | None = None,
    ) -> None:
        raise self.plain()

    def free(self, segment: Segment) -> None:
        raise self.plain()

    def purge(self) -> int:
        return 0

    def used_bytes(self) -> int:
        return 0

    def plain(self) -> Unimplemented:
        """What a function hears that computes in its own process."""
        return Unimplemented(
            "EXECUTION_UNAVAILABLE",
            f"device {self._name} is CUDA, on which plain execution is not implemented; deploy the function with "
            'execution = "rouse"',
            device=self._name,
        )
