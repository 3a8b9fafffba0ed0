"""Receiving blobs: into the spool, checked, then into the bucket, or nowhere at all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from rouse_common.clock import Clock
from rouse_common.errors import InvalidArgument, ResourceExhausted, RouseError
from rouse_common.locks import KeyedLocks
from rouse_contracts.repository import PutBlobRequest
from rouse_model_repository import metrics
from rouse_model_repository.adapters.bucket import Bucket
from rouse_model_repository.adapters.spool import Spool, SpoolFile
from rouse_model_repository.inspection import paths, pickles
from rouse_model_repository.state import Index

LOG = logging.getLogger(__name__)
# Of an upload that is refused, what is taken all the same.
READ_ON_BYTES, READ_ON_S = 16 << 20, 2.0


class Uploads:
    """Uploads under way. `locks` is shared with whoever deletes blobs, one a digest."""

    def __init__(
        self, bucket: Bucket, spool: Spool, index: Index, locks: KeyedLocks, clock: Clock, max_blob_bytes: int
    ) -> None:
        self._bucket, self._spool, self._index, self._locks = bucket, spool, index, locks
        self._clock, self._max_blob_bytes = clock, max_blob_bytes

    async def receive(self, parts: AsyncIterator[PutBlobRequest]) -> int:
        """Takes one upload, a header and its chunks; returns the bytes received. Whatever ends it, nothing of
        it stays in the spool, and the bucket has the whole blob or none of it.

        Raises InvalidArgument UPLOAD_TRUNCATED | UPLOAD_TOO_LONG | HASH_MISMATCH | BAD_DIGEST | BAD_UPLOAD,
        ResourceExhausted UPLOAD_TOO_LARGE | DISK_FULL, Unavailable BUS_DOWN.
        """
        outcome = "cancelled"
        try:
            size = await self._receive(parts)
            outcome = "stored"
        except RouseError as error:
            outcome = error.reason.lower()
            await _read_on(parts)
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            metrics.UPLOADS.labels(outcome).inc()
        return size

    async def _receive(self, parts: AsyncIterator[PutBlobRequest]) -> int:
        header = await self._header(parts)
        digest, size = paths.check_digest(header.digest), header.size_bytes
        if size > self._max_blob_bytes:
            raise ResourceExhausted(
                "UPLOAD_TOO_LARGE",
                f"blob {digest} has {size} bytes; this repository takes {self._max_blob_bytes} at most",
                digest=digest,
            )
        async with self._spool.open(size) as upload:
            await self._fill(upload, parts, digest, size)
            found = await upload.finish()
            if found != digest:
                raise InvalidArgument(
                    "HASH_MISMATCH",
                    f"the {size} bytes that came for blob {digest} have the sha256 {found}; send it again",
                    digest=digest,
                )
            await self._store(upload, digest)
        metrics.UPLOADED.inc(size)
        return size

    @staticmethod
    async def _header(parts: AsyncIterator[PutBlobRequest]) -> PutBlobRequest.Header:
        async for part in parts:
            if part.WhichOneof("part") == "header":
                return part.header
            raise InvalidArgument("BAD_UPLOAD", "the first message of an upload is its header")
        raise InvalidArgument("UPLOAD_TRUNCATED", "the upload ended before its header")

    @staticmethod
    async def _fill(upload: SpoolFile, parts: AsyncIterator[PutBlobRequest], digest: str, size: int) -> None:
        async for part in parts:
            if part.WhichOneof("part") != "chunk":
                raise InvalidArgument("BAD_UPLOAD", f"upload of blob {digest}: a message that is not a chunk")
            if upload.size_bytes + len(part.chunk) > size:
                text = f"upload of blob {digest}: more than the {size} bytes that its header says"
                raise InvalidArgument("UPLOAD_TOO_LONG", text, digest=digest)
            await upload.write(part.chunk)
        if upload.size_bytes < size:
            text = f"upload of blob {digest} ended after {upload.size_bytes} of {size} bytes; send it again"
            raise InvalidArgument("UPLOAD_TRUNCATED", text, digest=digest)

    async def _store(self, upload: SpoolFile, digest: str) -> None:
        async with self._locks.holding(digest):
            if self._index.claim(digest, self._clock.now()):
                return
            pickle = await asyncio.to_thread(pickles.by_content, upload.file)
            await self._bucket.put_blob(digest, upload.path, pickle)
            self._index.add_blob(digest, upload.size_bytes, pickle)
            self._index.claim(digest, self._clock.now())
        LOG.debug("stored blob digest=%s size_bytes=%d", digest, upload.size_bytes)


async def _read_on(parts: AsyncIterator[PutBlobRequest]) -> None:
    """Takes what a client still sends of an upload that is refused, as far as that does not take long: a client of
    grpc.aio that writes to a call which has just ended hears of an internal error instead of why it ended."""
    left = READ_ON_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(READ_ON_S):
            async for part in parts:
                left -= len(part.chunk)
                if left < 0:
                    return
