"""The folder where uploads lie until they are whole and checked."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from rouse_common.errors import ResourceExhausted

LOG = logging.getLogger(__name__)
SUFFIX = ".upload"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Left free on the disk for everything else.
RESERVE_BYTES = 64 << 20


def disk_full(where: Path, why: str) -> ResourceExhausted:
    return ResourceExhausted(
        "DISK_FULL", f"no room in {where} for the upload: {why}; free some space, or delete functions",
        retry_after_s=10.0,
    )  # fmt: skip


class SpoolFile:
    """One upload: written and hashed in a thread while the next part is received."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.size_bytes = 0
        self._file, self._hash = file, hashlib.sha256()
        self._writing: asyncio.Task[None] | None = None

    async def write(self, data: bytes) -> None:
        """Takes the next part. Raises ResourceExhausted DISK_FULL, for this part or the one before."""
        await self._settle()
        self.size_bytes += len(data)
        self._writing = asyncio.create_task(asyncio.to_thread(self._append, data))

    def _append(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)

    async def _settle(self) -> None:
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            # The thread cannot be stopped: `close` waits for it, whoever is cancelled here.
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            self._writing = writing
            raise
        except OSError as failure:
            raise self._typed(failure) from None

    def _typed(self, error: OSError) -> Exception:
        return disk_full(self.path.parent, os.strerror(error.errno)) if error.errno in NO_ROOM else error

    async def finish(self) -> str:
        """All parts are in: the sha256 of the whole in hex. Raises ResourceExhausted DISK_FULL."""
        await self._settle()
        try:
            await asyncio.to_thread(self._file.flush)
        except OSError as error:
            raise self._typed(error) from None
        return self._hash.hexdigest()

    @property
    def file(self) -> BinaryIO:
        """The whole upload, open for reading."""
        return self._file

    async def close(self) -> None:
        """Deletes the file; goes on to its end where the caller is cancelled, and that twice over."""
        await asyncio.shield(asyncio.create_task(self._close()))

    async def _close(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            await asyncio.wait({writing})
            if (error := writing.exception()) is not None:
                LOG.debug("the last part of an upload was not written error=%r", error)
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        try:
            self._file.close()  # flushes what is left, for which there may be no room
        except OSError as error:
            LOG.debug("closing a spool file failed error=%r", error)
        finally:
            self.path.unlink(missing_ok=True)

    async def __aenter__(self) -> SpoolFile:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Spool:
    """The folder, and how much of its disk the uploads under way may still take."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reserved = 0

    def prepare(self) -> None:
        """Makes the folder and deletes what a killed process left in it. Blocks. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        left = list(self._folder.glob(f"*{SUFFIX}"))
        for path in left:
            path.unlink()
        if left:
            LOG.info("deleted uploads that a former process left count=%d", len(left))

    @asynccontextmanager
    async def open(self, size_bytes: int) -> AsyncIterator[SpoolFile]:
        """A file for an upload of that size, deleted at the end. Raises ResourceExhausted DISK_FULL."""
        free = (await asyncio.to_thread(shutil.disk_usage, self._folder)).free
        if self._reserved + size_bytes + RESERVE_BYTES > free:
            raise disk_full(self._folder, f"{free} bytes are free, {self._reserved} of them promised to other uploads")
        self._reserved += size_bytes
        try:
            path = self._folder / f"{secrets.token_hex(8)}{SUFFIX}"
            file = await asyncio.to_thread(path.open, "x+b")
            async with SpoolFile(path, file) as upload:
                yield upload
        finally:
            self._reserved -= size_bytes
