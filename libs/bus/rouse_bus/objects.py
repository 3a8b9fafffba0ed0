"""Object store: files in a bucket of JetStream, streamed in and out in chunks."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from rouse_bus import layout
from rouse_bus.bus import Bus
from rouse_bus.inbox import Inbox
from rouse_bus.layout import CHUNK_BYTES, ObjectInfo
from rouse_bus.streams import Streams, StreamSettings, StreamState, acknowledged, check_name
from rouse_common.errors import DataLoss, NotFound, ResourceExhausted, RouseError

LOG = logging.getLogger(__name__)
__all__ = ["CHUNK_BYTES", "ObjectInfo", "ObjectStore"]

# Bytes sent whose acknowledgement is still to come: waiting for each chunk's halves the throughput.
WINDOW_BYTES = 16 << 20
READ_AHEAD_BYTES = 8 << 20
MAX_PROBES = 64


class ObjectStore:
    """One bucket. Other NATS clients read it, and it reads theirs.

    One writer a name at a time. An object appears, whole, when its last byte is stored; a put that fails or
    is cancelled leaves nothing. Every method raises Unavailable BUS_DOWN while NATS is away, NotFound
    STREAM_NOT_FOUND before `ensure`.

    Args:
        bucket: letters, digits, '-' and '_'.
        max_bytes: what it may hold, descriptions included; 0 is no limit.
    """

    def __init__(self, bus: Bus, bucket: str, *, max_bytes: int = 0, replicas: int = 1) -> None:
        self._bus, self._streams = bus, Streams(bus)
        self._bucket, self._stream = check_name(bucket), layout.stream(bucket)
        self._max_bytes, self._replicas = max_bytes, replicas
        self._writing: set[str] = set()

    async def ensure(self, metadata: Mapping[str, str] | None = None) -> None:
        """Makes the bucket unless it is there."""
        subjects = (layout.chunks(self._bucket), layout.descriptions(self._bucket))
        await self._streams.ensure(
            StreamSettings(
                self._stream, subjects, max_bytes=self._max_bytes, rollup=True, replicas=self._replicas,
                metadata=metadata or {},
            )
        )  # fmt: skip

    async def destroy(self) -> bool:
        """Deletes the bucket and all that is in it; False where there is none."""
        return await self._streams.delete(self._stream)

    async def put_file(
        self, name: str, path: Path, *, digest: str = "", metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Stores a file under `name`, in the place of what was there.

        Args:
            digest: its sha256 in hex, where it is known; computed otherwise.
        Raises: ResourceExhausted STORAGE_FULL | BUCKET_FULL.
        """
        file = await asyncio.to_thread(path.open, "rb")
        try:
            return await self._put(name, file, digest, metadata or {})
        finally:
            file.close()  # nothing to flush: it was only read

    async def put(self, name: str, data: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """Stores bytes under `name`, as put_file does."""
        return await self._put(name, BytesIO(data), "", metadata or {})

    async def _put(self, name: str, file: BinaryIO, digest: str, metadata: Mapping[str, str]) -> ObjectInfo:
        try:
            before: ObjectInfo | None = await self.info(name)
        except NotFound:
            before = None
        key = layout.new_key()
        self._writing.add(key)
        try:
            size, chunks, digest = await self._send(name, key, file, digest)
            info = ObjectInfo(name, size, digest, time.time(), chunks, CHUNK_BYTES, key, metadata)
            subject = layout.description(self._bucket, name)
            await self._streams.publish(subject, info.encode(self._bucket), headers=layout.ROLLUP)
        except BaseException as error:
            # Runs to its end also where the put was cancelled.
            await asyncio.shield(asyncio.create_task(self._discard(name, key)))
            if isinstance(error, ResourceExhausted) and error.reason == "STREAM_FULL":
                text = f"bucket {self._bucket} has no room for '{name}': its limit is {self._max_bytes} bytes"
                raise ResourceExhausted("BUCKET_FULL", text) from None
            raise
        finally:
            self._writing.discard(key)
        if before is not None:
            await self._streams.purge(self._stream, layout.chunks(self._bucket, before.key))
        return info

    async def _send(self, name: str, key: str, file: BinaryIO, digest: str) -> tuple[int, int, str]:
        what = f"storing '{name}' in bucket {self._bucket}"
        subject = layout.chunks(self._bucket, key)
        hashed = hashlib.sha256()

        def read() -> bytes:
            data = file.read(CHUNK_BYTES)
            if not digest:
                hashed.update(data)
            return data

        size = chunks = confirmed = 0
        async with Inbox(self._bus, what) as answers:
            while data := await asyncio.to_thread(read):
                await answers.publish(subject, data, token=chunks)
                size, chunks = size + len(data), chunks + 1
                while (answer := answers.waiting()) is not None or (chunks - confirmed) * CHUNK_BYTES >= WINDOW_BYTES:
                    acknowledged(what, (answer or await answers.next()).data)
                    confirmed += 1
            while confirmed < chunks:
                acknowledged(what, (await answers.next()).data)
                confirmed += 1
        return size, chunks, digest or hashed.hexdigest()

    async def _discard(self, name: str, key: str) -> None:
        subject = layout.chunks(self._bucket, key)
        try:
            # What was sent is stored in order: once this is answered, nothing comes after the purge.
            with contextlib.suppress(ResourceExhausted):
                await self._streams.publish(subject, b"")
            with contextlib.suppress(NotFound):
                if (await self.info(name)).key == key:  # stored, although the answer did not come
                    await self._streams.purge(self._stream, layout.description(self._bucket, name))
            await self._streams.purge(self._stream, subject)
        except RouseError as error:
            LOG.warning("left chunks for the next sweep bucket=%s key=%s reason=%s", self._bucket, key, error)

    async def info(self, name: str) -> ObjectInfo:
        """Raises NotFound OBJECT_NOT_FOUND."""
        try:
            message = await self._streams.last(self._stream, layout.description(self._bucket, name))
        except NotFound as error:
            if error.reason == "MESSAGE_NOT_FOUND":
                raise self._missing(name) from None
            raise
        info = ObjectInfo.decode(message.data, message.sequence)
        if info.deleted:
            raise self._missing(name)
        return info

    def _missing(self, name: str) -> NotFound:
        return NotFound("OBJECT_NOT_FOUND", f"bucket {self._bucket} holds no object '{name}'", object=name)

    async def read(self, name: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        """The content from `offset` on, up to `length` bytes of it, in chunks as they are stored.

        Close it (contextlib.aclosing) where it is not read to its end. Does not check the digest: who
        keeps the bytes does. Raises NotFound OBJECT_NOT_FOUND, DataLoss OBJECT_CORRUPT.
        """
        info = await self.info(name)
        left = max(0, info.size_bytes - offset)
        left = left if length is None else min(left, length)
        if left == 0:
            return
        start, skip = 1, offset
        if info.chunk_bytes and offset >= info.chunk_bytes:
            start, skip = await self._sequence_of(info, offset // info.chunk_bytes), offset % info.chunk_bytes
        batch = max(1, min(left, READ_AHEAD_BYTES) // (info.chunk_bytes or CHUNK_BYTES) + 1)
        subject = layout.chunks(self._bucket, info.key)
        async with aclosing(self._streams.scan(self._stream, subject, start=start, batch=batch)) as messages:
            async for message in messages:
                data = message.data[skip : skip + left]
                skip = max(0, skip - len(message.data))
                left -= len(data)
                if data:
                    yield data
                if left == 0:
                    return
        raise DataLoss("OBJECT_CORRUPT", f"object '{name}' of bucket {self._bucket} lacks its last {left} bytes")

    async def _sequence_of(self, info: ObjectInfo, chunk: int) -> int:
        """The stream's sequence of an object's chunk. Chunks of objects written at once lie mixed."""
        subject = layout.chunks(self._bucket, info.key)
        low, high = 1, info.sequence - (info.chunks - chunk)
        guess = high
        for _ in range(MAX_PROBES):
            found = None
            async with aclosing(self._streams.scan(self._stream, subject, start=guess, batch=1)) as messages:
                async for message in messages:
                    found = message
                    break
            index = info.chunks if found is None else info.chunks - 1 - found.following
            if found is not None and index == chunk:
                return found.sequence
            if index < chunk:
                assert found is not None
                low = found.sequence + 1
            else:
                high = guess - 1
            if low > high:
                break
            guess = min(high, max(low, (low + high) // 2 if index >= chunk else low + chunk - index - 1))
        raise DataLoss("OBJECT_CORRUPT", f"object '{info.name}' of bucket {self._bucket} lacks chunk {chunk}")

    async def get(self, name: str, *, limit: int) -> bytes:
        """The content of an object of at most `limit` bytes, its digest checked.

        Raises NotFound OBJECT_NOT_FOUND, DataLoss OBJECT_CORRUPT, ResourceExhausted OBJECT_TOO_LARGE.
        """
        buffer = BytesIO()
        await self._copy(name, limit, lambda data: _at_once(buffer.write, data))
        return buffer.getvalue()

    async def get_file(self, name: str, path: Path, *, limit: int) -> int:
        """Writes the content to a new file, as get does; nothing is left of it after a failure. Returns its bytes."""
        file = await asyncio.to_thread(path.open, "xb")
        try:
            try:
                return await self._copy(name, limit, lambda data: asyncio.to_thread(file.write, data))
            finally:
                file.close()
        except BaseException:
            await asyncio.shield(asyncio.create_task(asyncio.to_thread(path.unlink)))
            raise

    async def _copy(self, name: str, limit: int, write: Callable[[bytes], Awaitable[int]]) -> int:
        info = await self.info(name)
        if info.size_bytes > limit:
            text = f"object '{name}' of bucket {self._bucket} has {info.size_bytes} bytes; at most {limit} are taken"
            raise ResourceExhausted("OBJECT_TOO_LARGE", text)
        hashed = hashlib.sha256()
        async with aclosing(self.read(name)) as chunks:
            async for data in chunks:
                await asyncio.to_thread(hashed.update, data)
                await write(data)
        if info.digest and hashed.hexdigest() != info.digest:
            raise DataLoss("OBJECT_CORRUPT", f"object '{name}' of bucket {self._bucket} does not have its digest")
        return info.size_bytes

    async def delete(self, name: str) -> bool:
        """Deletes an object, its description too; False where there is none."""
        try:
            info = await self.info(name)
        except NotFound as error:
            if error.reason != "OBJECT_NOT_FOUND":
                raise
            return False
        # Unlike other clients, no tombstone stays: a bucket that lives for years would fill with them.
        await self._streams.purge(self._stream, layout.description(self._bucket, name))
        await self._streams.purge(self._stream, layout.chunks(self._bucket, info.key))
        return True

    async def list(self) -> builtins.list[ObjectInfo]:
        """All objects, in the order in which they were written."""
        found = []
        async with aclosing(self._streams.scan(self._stream, layout.descriptions(self._bucket))) as messages:
            async for message in messages:
                info = ObjectInfo.decode(message.data, message.sequence)
                if not info.deleted:
                    found.append(info)
        return found

    async def sweep(self) -> int:
        """Deletes the chunks that belong to no object: what a writer left that was killed, or cut off from
        NATS. For the bucket's only writer. Returns how many."""
        chunks = await self._streams.subjects(self._stream, layout.chunks(self._bucket))
        # In this order: what is finished meanwhile was being written, or is listed.
        kept = {layout.chunks(self._bucket, key) for key in self._writing}
        kept |= {layout.chunks(self._bucket, info.key) for info in await self.list()}
        swept = 0
        for subject in chunks.keys() - kept:
            swept += await self._streams.purge(self._stream, subject)
        return swept

    async def state(self) -> StreamState:
        """The bucket's stream: its bytes, its limit, its metadata."""
        return await self._streams.state(self._stream)

    async def size(self) -> int:
        """Bytes that the bucket takes, descriptions and framing included."""
        return (await self.state()).bytes


async def _at_once(write: Callable[[bytes], int], data: bytes) -> int:
    return write(data)
