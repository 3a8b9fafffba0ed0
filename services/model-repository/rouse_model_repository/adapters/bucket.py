"""Blobs and records in the bucket `artefacts`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from google.protobuf.message import DecodeError

from rouse_bus import Bus
from rouse_bus.objects import ObjectInfo, ObjectStore
from rouse_common.errors import DataLoss, NotFound, ResourceExhausted
from rouse_contracts.repository import Artefact, ListStatesResponse, State
from rouse_model_repository.state import Blob

LOG = logging.getLogger(__name__)
BUCKET = "artefacts"
BLOBS, RECORDS, STATES = "blobs/", "records/", "states/"
PICKLE = "pickle"
MAX_RECORD_BYTES = 256 << 20
MAX_STATES_BYTES = 4 << 20
PARALLEL_READS = 16


class Bucket:
    """Every method raises Unavailable BUS_DOWN while NATS is away."""

    def __init__(self, bus: Bus, replicas: int) -> None:
        self._objects = ObjectStore(bus, BUCKET, replicas=replicas)

    async def prepare(self) -> None:
        """Makes the bucket unless it is there, and deletes what killed uploads left in it."""
        await self._objects.ensure()
        swept = await self._objects.sweep()
        if swept:
            LOG.info("deleted chunks of uploads that were cut off count=%d", swept)

    async def put_blob(self, digest: str, path: Path, pickle: str) -> None:
        """Stores a file whose sha256 is `digest`. Raises ResourceExhausted DISK_FULL."""
        metadata = {PICKLE: pickle} if pickle else {}
        try:
            await self._objects.put_file(BLOBS + digest, path, digest=digest, metadata=metadata)
        except ResourceExhausted as error:
            raise _full(error) from None

    async def delete_blob(self, digest: str) -> None:
        await self._objects.delete(BLOBS + digest)

    async def read_blob(self, digest: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        """Close it where it is not read to its end. Raises NotFound BLOB_NOT_FOUND, DataLoss OBJECT_CORRUPT."""
        try:
            async with aclosing(self._objects.read(BLOBS + digest, offset, length)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except NotFound:
            raise blob_not_found(digest) from None

    async def put_record(self, artefact: Artefact) -> None:
        """Raises ResourceExhausted DISK_FULL."""
        data = await asyncio.to_thread(artefact.SerializeToString)
        try:
            await self._objects.put(RECORDS + artefact.digest, data)
        except ResourceExhausted as error:
            raise _full(error) from None

    async def get_record(self, digest: str) -> Artefact:
        """Raises NotFound ARTEFACT_NOT_FOUND, DataLoss OBJECT_CORRUPT."""
        try:
            data = await self._objects.get(RECORDS + digest, limit=MAX_RECORD_BYTES)
        except NotFound:
            raise artefact_not_found(digest) from None
        try:
            return await asyncio.to_thread(Artefact.FromString, data)
        except DecodeError:
            raise DataLoss("OBJECT_CORRUPT", f"the record of artefact {digest} cannot be read") from None

    async def delete_record(self, digest: str) -> None:
        await self._objects.delete(RECORDS + digest)

    async def put_states(self, artefact: str, states: Sequence[State]) -> None:
        """Records all states of an artefact. Raises ResourceExhausted DISK_FULL."""
        if not states:
            await self._objects.delete(STATES + artefact)
            return
        try:
            await self._objects.put(STATES + artefact, ListStatesResponse(states=states).SerializeToString())
        except ResourceExhausted as error:
            raise _full(error) from None

    async def get_states(self, artefact: str) -> Sequence[State]:
        """The states of an artefact as they were recorded; none where what was recorded cannot be read."""
        try:
            data = await self._objects.get(STATES + artefact, limit=MAX_STATES_BYTES)
            return ListStatesResponse.FromString(data).states
        except NotFound:
            return ()  # deleted since it was listed
        except (DataLoss, DecodeError) as error:
            # States can be made anew; the artefact cannot.
            LOG.error("the states of artefact %s cannot be read and are forgotten: %s", artefact, error)
            return ()

    async def list(self) -> tuple[list[Blob], list[Artefact], dict[str, Sequence[State]]]:
        """All blobs, all artefacts without the tensors of their layouts, and the states of each."""
        infos = await self._objects.list()
        blobs = [_blob(info) for info in infos if info.name.startswith(BLOBS)]
        gate = asyncio.Semaphore(PARALLEL_READS)

        async def load(info: ObjectInfo) -> Artefact | None:
            async with gate:
                try:
                    artefact = await self.get_record(info.name.removeprefix(RECORDS))
                except NotFound:
                    return None  # deleted since it was listed
            artefact.layout.ClearField("tensors")
            return artefact

        async def load_states(artefact: str) -> Sequence[State]:
            async with gate:
                return await self.get_states(artefact)

        with_states = [info.name.removeprefix(STATES) for info in infos if info.name.startswith(STATES)]
        try:
            async with asyncio.TaskGroup() as tasks:
                loads = [tasks.create_task(load(info)) for info in infos if info.name.startswith(RECORDS)]
                states = {digest: tasks.create_task(load_states(digest)) for digest in with_states}
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        artefacts = [artefact for task in loads if (artefact := task.result()) is not None]
        return blobs, artefacts, {digest: task.result() for digest, task in states.items()}

    async def size(self) -> int:
        """Bytes that the bucket takes in NATS."""
        return await self._objects.size()


def _blob(info: ObjectInfo) -> Blob:
    return Blob(info.name.removeprefix(BLOBS), info.size_bytes, info.metadata.get(PICKLE, ""))


def _full(error: ResourceExhausted) -> ResourceExhausted:
    return ResourceExhausted(
        "DISK_FULL", f"the object store has no room: {error}; delete functions", retry_after_s=10.0
    )


def blob_not_found(digest: str) -> NotFound:
    return NotFound("BLOB_NOT_FOUND", f"there is no blob {digest}; upload it", digest=digest)


def artefact_not_found(digest: str) -> NotFound:
    return NotFound("ARTEFACT_NOT_FOUND", f"there is no artefact {digest}; deploy its function again", digest=digest)
