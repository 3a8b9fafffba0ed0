"""Device memory on the host: a file on a tmpfs per resident model.

The pages are taken before the copy starts, so a full tmpfs is an error here and never a SIGBUS in a
process that maps the file. The copy stays inside the kernel (copy_file_range), in chunks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from rouse_common.errors import DataLoss, ResourceExhausted
from rouse_gpu_server.backends import Carry, CopyCancelled, Segment

CHUNK_BYTES = 4 << 20


class HostBackend:
    """A device whose memory is the folder `folder`, which lies on a tmpfs."""

    kind = "host"

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        # Closed to others, so that what is below may be open: an instance with a user of its own is shown the one
        # folder that concerns it.
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)

    def folder(self, owner: str) -> Path:
        folder = self._folder / owner
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        return folder

    def forget(self, owner: str) -> None:
        with contextlib.suppress(OSError):  # something is in it, or it is not there
            (self._folder / owner).rmdir()

    def allocate(self, owner: str, name: str, size_bytes: int) -> Segment:
        segment = Segment(self.folder(owner) / f"{name}.seg", size_bytes)
        handle = os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(handle, 0, size_bytes)
        except OSError as error:
            segment.path.unlink()
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise ResourceExhausted(
                    "DEVICE_MEMORY_FULL",
                    f"the tmpfs behind device {self._name} has no room for {size_bytes} B; does something else fill "
                    f"{self._folder.parent}? Lower --device or --host-memory",
                    retry_after_s=1.0,
                    device=self._name,
                ) from error
            raise
        finally:
            os.close(handle)
        return segment

    def copy(
        self,
        source: Path,
        segment: Segment,
        cancelled: threading.Event,
        progress: Callable[[int], None],
        carry: Carry | None = None,
    ) -> None:
        reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            writing = os.open(segment.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                self._copy(source, reading, writing, segment.size_bytes, cancelled, progress, carry)
            finally:
                os.close(writing)
        finally:
            os.close(reading)

    def _copy(
        self,
        source: Path,
        reading: int,
        writing: int,
        size_bytes: int,
        cancelled: threading.Event,
        progress: Callable[[int], None],
        carry: Carry | None,
    ) -> None:
        done = 0
        while done < size_bytes:
            if cancelled.is_set():
                raise CopyCancelled
            count = os.copy_file_range(reading, writing, min(CHUNK_BYTES, size_bytes - done), done, done)
            if count == 0:
                raise DataLoss("SOURCE_TRUNCATED", f"{source} ends after {done} of {size_bytes} B", device=self._name)
            done += count
            if carry is not None:
                carry(count, cancelled)
            progress(done)

    def free(self, segment: Segment) -> None:
        segment.path.unlink(missing_ok=True)

    def purge(self) -> int:
        freed = 0
        # The folders stay: running instances were let into these very ones.
        for path in self._folder.rglob("*.seg"):
            freed += path.stat().st_size
            path.unlink()
        return freed

    def used_bytes(self) -> int:
        return sum(path.stat().st_blocks * 512 for path in self._folder.rglob("*.seg"))
