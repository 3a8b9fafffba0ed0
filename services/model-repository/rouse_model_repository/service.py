"""rouse.repository.v1.RepositoryService: thin handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from grpc.aio import ServicerContext

from rouse_common.errors import InvalidArgument, Unavailable
from rouse_contracts import repository
from rouse_contracts.repository import RepositoryServiceServicer
from rouse_model_repository import metrics
from rouse_model_repository.adapters.bucket import Bucket, blob_not_found
from rouse_model_repository.inspection.paths import check_digest
from rouse_model_repository.library import Library
from rouse_model_repository.states import States
from rouse_model_repository.uploads import Uploads

MESSAGE_BYTES = 1 << 20
register = repository.add_RepositoryServiceServicer_to_server


class RepositoryService(RepositoryServiceServicer):
    """Answers UNAVAILABLE BUS_DOWN while `loaded` says that the index is not true to the bucket."""

    def __init__(
        self, library: Library, states: States, uploads: Uploads, bucket: Bucket, loaded: Callable[[], bool]
    ) -> None:
        self._library, self._states, self._uploads = library, states, uploads
        self._bucket, self._loaded = bucket, loaded

    def _require_loaded(self) -> None:
        if not self._loaded():
            raise Unavailable("BUS_DOWN", "model-repository waits for NATS; try again shortly", retry_after_s=1.0)

    async def FindMissingBlobs(
        self, request: repository.FindMissingBlobsRequest, context: ServicerContext
    ) -> repository.FindMissingBlobsResponse:
        self._require_loaded()
        return repository.FindMissingBlobsResponse(missing_digests=self._library.missing(request.digests))

    async def PutBlob(
        self, requests: AsyncIterator[repository.PutBlobRequest], context: ServicerContext
    ) -> repository.PutBlobResponse:
        self._require_loaded()
        return repository.PutBlobResponse(received_bytes=await self._uploads.receive(requests))

    async def GetBlob(
        self, request: repository.GetBlobRequest, context: ServicerContext
    ) -> AsyncIterator[repository.GetBlobResponse]:
        self._require_loaded()
        size = self._library.size_of(check_digest(request.digest))
        if size is None:
            raise blob_not_found(request.digest)
        if request.offset_bytes > size:
            text = f"blob {request.digest} has {size} bytes; offset {request.offset_bytes} is past its end"
            raise InvalidArgument("BAD_OFFSET", text, digest=request.digest)
        waiting = bytearray()
        async with aclosing(self._bucket.read_blob(request.digest, request.offset_bytes)) as chunks:
            async for chunk in chunks:
                waiting += chunk
                while len(waiting) >= MESSAGE_BYTES:
                    yield _message(waiting)
        if waiting:
            yield _message(waiting)

    async def CommitArtefact(
        self, request: repository.CommitArtefactRequest, context: ServicerContext
    ) -> repository.CommitArtefactResponse:
        self._require_loaded()
        return repository.CommitArtefactResponse(artefact=await self._library.commit(request.files))

    async def GetArtefact(
        self, request: repository.GetArtefactRequest, context: ServicerContext
    ) -> repository.GetArtefactResponse:
        self._require_loaded()
        return repository.GetArtefactResponse(artefact=await self._library.get(request.digest))

    async def DeleteArtefact(
        self, request: repository.DeleteArtefactRequest, context: ServicerContext
    ) -> repository.DeleteArtefactResponse:
        self._require_loaded()
        return repository.DeleteArtefactResponse(freed_bytes=await self._library.delete(request.digest))

    async def ListArtefacts(
        self, request: repository.ListArtefactsRequest, context: ServicerContext
    ) -> repository.ListArtefactsResponse:
        self._require_loaded()
        stored = await self._library.stored_bytes()
        return repository.ListArtefactsResponse(artefacts=self._library.list(), stored_bytes=stored)

    async def PutState(
        self, request: repository.PutStateRequest, context: ServicerContext
    ) -> repository.PutStateResponse:
        self._require_loaded()
        return repository.PutStateResponse(state=await self._states.put(request.state))

    async def ListStates(
        self, request: repository.ListStatesRequest, context: ServicerContext
    ) -> repository.ListStatesResponse:
        self._require_loaded()
        found = self._states.list(request.artefact_digest, request.made_with)
        return repository.ListStatesResponse(states=found)

    async def DeleteStates(
        self, request: repository.DeleteStatesRequest, context: ServicerContext
    ) -> repository.DeleteStatesResponse:
        self._require_loaded()
        freed = await self._states.delete(request.artefact_digest, request.made_with)
        return repository.DeleteStatesResponse(freed_bytes=freed)


def _message(waiting: bytearray) -> repository.GetBlobResponse:
    """Takes the next message off the front."""
    chunk = bytes(memoryview(waiting)[:MESSAGE_BYTES])
    del waiting[:MESSAGE_BYTES]
    metrics.DOWNLOADED.inc(len(chunk))
    return repository.GetBlobResponse(chunk=chunk)
