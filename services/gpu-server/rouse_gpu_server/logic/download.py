"""Fetching blobs from model-repository: a few at once, each verified, resumed where the connection broke."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from rouse_common.errors import Unavailable
from rouse_gpu_server.adapters.disk import BlobWriter, Disk
from rouse_gpu_server.adapters.repository import Repository
from rouse_gpu_server.logic.work import in_thread

LOG = logging.getLogger(__name__)
MAX_BLOBS = 4
MAX_ATTEMPTS = 5
BACKOFF_S = 0.2
# Hashing and writing so much at once is worth the way to a thread.
BATCH_BYTES = 4 << 20


async def fetch_blobs(
    repository: Repository, disk: Disk, threads: ThreadPoolExecutor, sizes: Mapping[str, int], limit_s: float
) -> None:
    """Brings blobs (digest: bytes) to disk. The first failure stops the others and is raised."""
    slots = asyncio.Semaphore(MAX_BLOBS)

    async def one(digest: str, size_bytes: int) -> None:
        async with slots:
            await _fetch(repository, disk, threads, digest, size_bytes, limit_s)

    try:
        async with asyncio.TaskGroup() as group:
            for digest, size_bytes in sizes.items():
                group.create_task(one(digest, size_bytes))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _fetch(
    repository: Repository, disk: Disk, threads: ThreadPoolExecutor, digest: str, size_bytes: int, limit_s: float
) -> None:
    never = threading.Event()
    writer = await in_thread(threads, never, lambda: BlobWriter(disk, digest, size_bytes))
    try:
        attempt = 1
        while True:
            try:
                await _stream(repository, threads, writer, digest, limit_s)
                break
            except Unavailable as error:
                if attempt == MAX_ATTEMPTS:
                    raise
                LOG.warning("blob %s broke off at %d B, going on: %s", digest, writer.written_bytes, error)
                await asyncio.sleep(BACKOFF_S * 2**attempt)
                attempt += 1
        await in_thread(threads, never, writer.finish)
    finally:
        await in_thread(threads, never, writer.abandon)


async def _stream(
    repository: Repository, threads: ThreadPoolExecutor, writer: BlobWriter, digest: str, limit_s: float
) -> None:
    never = threading.Event()
    batch: list[bytes] = []
    held = 0

    async def flush() -> None:
        nonlocal batch, held
        data, batch, held = b"".join(batch), [], 0
        await in_thread(threads, never, lambda: writer.write(data))

    try:
        async for chunk in repository.get_blob(digest, writer.written_bytes, limit_s):
            batch.append(chunk)
            held += len(chunk)
            if held >= BATCH_BYTES:
                await flush()
    finally:
        # What came before the connection broke need not come again.
        await flush()
