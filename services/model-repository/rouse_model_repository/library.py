"""Artefacts: recorded, told, forgotten; and the blobs that nobody names any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from rouse_common.clock import Clock
from rouse_common.errors import FailedPrecondition, InvalidArgument, NotFound, RouseError
from rouse_common.locks import KeyedLocks
from rouse_contracts.functions import ArtefactFile
from rouse_contracts.repository import Artefact, State
from rouse_model_repository import metrics
from rouse_model_repository.adapters.bucket import Bucket, artefact_not_found
from rouse_model_repository.inspection import paths, pickles
from rouse_model_repository.inspector import Inspector
from rouse_model_repository.state import Blob, Index

LOG = logging.getLogger(__name__)
SHOWN_MISSING = 5


class Library:
    """The artefacts of the repository, the index of which it keeps true to the bucket."""

    def __init__(
        self,
        bucket: Bucket,
        index: Index,
        locks: KeyedLocks,
        inspector: Inspector,
        clock: Clock,
        uncommitted_s: float,
        limits: paths.Limits,
    ) -> None:
        self._bucket, self._index, self._locks, self._inspector = bucket, index, locks, inspector
        self._clock, self._uncommitted_s, self._limits = clock, uncommitted_s, limits
        # Recording and forgetting, one at a time: both are short.
        self._writing = asyncio.Lock()
        # A deletion failed half-way: the bucket must be listed again.
        self._stale = False

    async def load(self) -> None:
        """Reads what the bucket holds, at start and whenever NATS is back."""
        await self._bucket.prepare()
        self._index.begin_listing()
        blobs, artefacts, states = await self._bucket.list()
        self._index.finish_listing(blobs, artefacts, self._clock.now(), states)
        await self._drop_orphans(states)
        self._stale = False
        for artefact in self._index.artefacts.values():
            if missing := self._index.missing_of(artefact):
                LOG.error("artefact %s lacks %d of its blobs, as %s", artefact.digest, len(missing), missing[0])
        LOG.info("holds artefacts=%d blobs=%d", len(self._index.artefacts), len(self._index.blobs))

    async def _drop_orphans(self, states: Iterable[str]) -> None:
        """Deletes records of states whose artefact is gone: its deletion was cut short."""
        async with self._writing:
            for artefact in states:
                if artefact not in self._index.artefacts:
                    await self._bucket.put_states(artefact, ())

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Which blobs are not here. Those that are wait for their commit. Raises InvalidArgument BAD_DIGEST."""
        wanted = list(dict.fromkeys(paths.check_digest(digest) for digest in digests))
        if len(wanted) > paths.MAX_FILES:
            raise InvalidArgument("TOO_MANY_DIGESTS", f"{len(wanted)} digests; at most {paths.MAX_FILES} a call")
        now = self._clock.now()
        return [digest for digest in wanted if not self._index.claim(digest, now)]

    def size_of(self, digest: str) -> int | None:
        """Bytes of a blob; None where it is not here."""
        blob = self._index.blobs.get(digest)
        return None if blob is None else blob.size_bytes

    async def commit(self, files: Sequence[ArtefactFile]) -> Artefact:
        """Inspects files that are uploaded and records them as an artefact; the same files, the same artefact.

        Raises what CommitArtefact documents.
        """
        paths.check_files(files)
        paths.check_limits(files, self._limits)
        self._check_blobs(files)
        digest = paths.manifest_digest(files)
        with self._index.pinned({file.digest for file in files}):
            known = await self._known(digest)
            artefact = known or await self._inspector.inspect(digest, files)
            async with self._writing:
                self._check_blobs(files)  # NATS may have come back with less
                if known is None or digest not in self._index.artefacts:
                    await self._bucket.put_record(artefact)
                self._index.record(artefact)
        LOG.info(
            "recorded artefact digest=%s files=%d size_mib=%.1f image_mib=%.1f architecture=%s",
            digest, len(files), artefact.size_bytes / 2**20, artefact.layout.image_bytes / 2**20,
            artefact.architecture or "-",
        )  # fmt: skip
        return artefact

    async def _known(self, digest: str) -> Artefact | None:
        if digest not in self._index.artefacts:
            return None
        try:
            return await self._bucket.get_record(digest)
        except NotFound:
            return None  # deleting it was cut short

    def _check_blobs(self, files: Sequence[ArtefactFile]) -> None:
        missing = sorted({file.path for file in files if file.digest not in self._index.blobs})
        if missing:
            shown = ", ".join(missing[:SHOWN_MISSING]) + (" …" if len(missing) > SHOWN_MISSING else "")
            text = f"{len(missing)} of {len(files)} files are not uploaded: {shown}; upload them and commit again"
            raise FailedPrecondition("BLOB_MISSING", text, file=missing[0])
        for file in files:
            blob = self._index.blobs[file.digest]
            if found := pickles.by_name(file.path) or blob.pickle:
                raise _pickle_refused(file.path, found)
            if blob.size_bytes != file.size_bytes:
                text = f"{file.path} has {blob.size_bytes} bytes, not the {file.size_bytes} that the list says"
                raise InvalidArgument("BAD_ARTEFACT", text, file=file.path)

    async def get(self, digest: str) -> Artefact:
        """Raises NotFound ARTEFACT_NOT_FOUND, InvalidArgument BAD_DIGEST."""
        if paths.check_digest(digest) not in self._index.artefacts:
            raise artefact_not_found(digest)
        return await self._bucket.get_record(digest)

    def list(self) -> list[Artefact]:
        """Artefacts in the order of their digests, without the tensors of their layouts."""
        return [self._index.artefacts[digest] for digest in sorted(self._index.artefacts)]

    async def stored_bytes(self) -> int:
        return await self._bucket.size()

    async def delete(self, digest: str) -> int:
        """Forgets an artefact and deletes the blobs that nobody names or waits for; returns their bytes."""
        paths.check_digest(digest)
        async with self._writing:
            if digest not in self._index.artefacts:
                return 0
            if self._index.states_of(digest):
                await self._bucket.put_states(digest, ())
            await self._bucket.delete_record(digest)
            free = self._index.forget(digest)
        freed = await self._drop(free)
        LOG.info("deleted artefact digest=%s blobs=%d freed_mib=%.1f", digest, len(free), freed / 2**20)
        return freed

    async def change_states(self, artefact: str, change: Callable[[tuple[State, ...]], Sequence[State]]) -> int:
        """Replaces the states of an artefact by what `change` makes of them; returns the bytes of blobs that went.

        Raises NotFound ARTEFACT_NOT_FOUND, ResourceExhausted DISK_FULL, and what `change` raises.
        """
        async with self._writing:
            if paths.check_digest(artefact) not in self._index.artefacts:
                raise artefact_not_found(artefact)
            wanted = change(self._index.states_of(artefact))
            await self._bucket.put_states(artefact, wanted)
            free = self._index.set_states(artefact, wanted)
        return await self._drop(free)

    async def collect(self) -> None:
        """Deletes blobs that were uploaded and never became part of an artefact; for a loop to call."""
        if self._stale:
            await self.load()
        expired = self._index.expired(self._clock.now(), self._uncommitted_s)
        if expired:
            freed = await self._drop(expired)
            metrics.COLLECTED.inc(len(expired))
            LOG.info("deleted blobs that no artefact names blobs=%d freed_mib=%.1f", len(expired), freed / 2**20)

    async def _drop(self, blobs: Iterable[Blob]) -> int:
        freed = 0
        for blob in blobs:
            async with self._locks.holding(blob.digest):
                if self._index.blobs.get(blob.digest) is blob and blob.droppable:
                    # Out of the index first: who asks from now on is told to upload it, and waits for the lock.
                    self._index.drop_blob(blob.digest)
                    try:
                        await self._bucket.delete_blob(blob.digest)
                    except RouseError:
                        self._stale = True
                        raise
                    freed += blob.size_bytes
        return freed


def _pickle_refused(path: str, found: str) -> InvalidArgument:
    return InvalidArgument(
        "PICKLE_REFUSED",
        f"{path}: {found}; loading a pickle runs code of whoever made it. Save weights as safetensors "
        "(safetensors.torch.save_file, or save_pretrained(safe_serialization=True)) and leave this file out",
        file=path,
    )
