"""Host images: one file per artefact in memory, laid out as on a device, built from its safetensors files."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from rouse_common.errors import DataLoss, ResourceExhausted
from rouse_contracts.repository import WeightsLayout
from rouse_gpu_server.backends import CopyCancelled
from rouse_gpu_server.state.ledger import round_up

ALIGNMENT_BYTES = 64
CHUNK_BYTES = 4 << 20
SUFFIX = ".img"


def check_layout(layout: WeightsLayout, file_sizes: Mapping[str, int], digest: str) -> None:
    """Checks that every tensor lies inside its file and the image, and that none overlap.

    Raises DataLoss BAD_LAYOUT.
    """

    def bad(what: str) -> DataLoss:
        return DataLoss("BAD_LAYOUT", f"artefact {digest}: {what}; deploy it again", artefact=digest)

    end, before = 0, ""
    for tensor in sorted(layout.tensors, key=lambda t: (t.image_offset_bytes, t.size_bytes)):
        if tensor.file not in file_sizes:
            raise bad(f"tensor '{tensor.name}' is in '{tensor.file}', which the artefact does not have")
        if tensor.file_offset_bytes + tensor.size_bytes > file_sizes[tensor.file]:
            raise bad(f"tensor '{tensor.name}' reaches beyond the end of '{tensor.file}'")
        if tensor.image_offset_bytes % ALIGNMENT_BYTES:
            raise bad(f"tensor '{tensor.name}' stands at {tensor.image_offset_bytes}, which is not 64-byte aligned")
        if tensor.image_offset_bytes < end and tensor.size_bytes:
            raise bad(f"tensors '{before}' and '{tensor.name}' overlap in the image")
        end, before = max(end, tensor.image_offset_bytes + tensor.size_bytes), tensor.name
    if end > layout.image_bytes:
        raise bad(f"tensor '{before}' reaches beyond the image's {layout.image_bytes} B")


class Images:
    """The folder of host images. Methods block: call them from threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)

    def used_bytes(self) -> int:
        """Memory that the files take, whole or not."""
        return sum(path.stat().st_blocks * 512 for path in self._folder.iterdir())

    def path(self, digest: str) -> Path:
        return self._folder / f"{digest}{SUFFIX}"

    def recover(self, expected: Mapping[str, int]) -> set[str]:
        """Digests of the images of an earlier life that are whole; `expected` gives the image bytes of the
        artefacts on disk. Everything else in the folder is removed."""
        found = set()
        for path in self._folder.iterdir():
            digest = path.name.removesuffix(SUFFIX)
            size = expected.get(digest, 0)
            if path.name.endswith(SUFFIX) and size and path.stat().st_size == round_up(size):
                found.add(digest)
            else:
                path.unlink()
        return found

    def build(self, digest: str, layout: WeightsLayout, files: Path, cancelled: threading.Event) -> Path:
        """Writes an image under a temporary name and gives it its own when it is whole.

        Raises ResourceExhausted HOST_MEMORY_FULL, DataLoss, CopyCancelled; nothing is left behind then.
        """
        temporary = self._folder / f"{digest}.tmp"
        try:
            with temporary.open("wb") as image:
                os.posix_fallocate(image.fileno(), 0, round_up(layout.image_bytes))
                _fill(image.fileno(), layout, files, cancelled)
                os.fchmod(image.fileno(), 0o444)
            temporary.replace(self.path(digest))
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise ResourceExhausted(
                    "HOST_MEMORY_FULL",
                    f"the tmpfs behind {self._folder} has no room for the {layout.image_bytes} B of artefact {digest}; "
                    "does something else fill it? Lower --host-memory or --device",
                    retry_after_s=1.0,
                    artefact=digest,
                ) from error
            raise
        return self.path(digest)

    def remove(self, digest: str) -> None:
        self.path(digest).unlink(missing_ok=True)


def _fill(image: int, layout: WeightsLayout, files: Path, cancelled: threading.Event) -> None:
    handles: dict[str, int] = {}
    try:
        for tensor in layout.tensors:
            if tensor.file not in handles:
                handles[tensor.file] = os.open(files / tensor.file, os.O_RDONLY | os.O_CLOEXEC)
            reading, done = handles[tensor.file], 0
            while done < tensor.size_bytes:
                if cancelled.is_set():
                    raise CopyCancelled
                # From another filesystem copy_file_range may refuse; sendfile takes any file.
                os.lseek(image, tensor.image_offset_bytes + done, os.SEEK_SET)
                want = min(CHUNK_BYTES, tensor.size_bytes - done)
                count = os.sendfile(image, reading, tensor.file_offset_bytes + done, want)
                if count == 0:
                    raise DataLoss("SOURCE_TRUNCATED", f"'{tensor.file}' ends within tensor '{tensor.name}'")
                done += count
    finally:
        for handle in handles.values():
            os.close(handle)
