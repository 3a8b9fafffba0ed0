"""Calls to model-repository."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import grpc

from rouse_common import telemetry
from rouse_common.errors import from_rpc_error
from rouse_common.rpc import Channels, call
from rouse_contracts.repository import Artefact, GetArtefactRequest, GetBlobRequest, RepositoryServiceStub

CALL_TIMEOUT_S = 10.0


class Repository(Protocol):
    """Where artefacts come from. Both raise RouseError."""

    async def get_artefact(self, digest: str) -> Artefact: ...

    def get_blob(self, digest: str, offset_bytes: int, timeout_s: float) -> AsyncIterator[bytes]: ...


class RepositoryClient:
    """Speaks RepositoryService."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channels, self._address = channels, address

    async def get_artefact(self, digest: str) -> Artefact:
        """An artefact's files and layout. Raises NotFound ARTEFACT_NOT_FOUND."""
        stub = RepositoryServiceStub(self._channels.get(self._address))
        request = GetArtefactRequest(digest=digest)
        response = await call(stub.GetArtefact, request, timeout_s=CALL_TIMEOUT_S, wait_for_ready=True)
        artefact: Artefact = response.artefact
        return artefact

    async def get_blob(self, digest: str, offset_bytes: int, timeout_s: float) -> AsyncIterator[bytes]:
        """A blob's bytes from an offset on, in chunks of at most 1 MiB."""
        stub = RepositoryServiceStub(self._channels.get(self._address))
        request = GetBlobRequest(digest=digest, offset_bytes=offset_bytes)
        stream = stub.GetBlob(request, timeout=timeout_s, metadata=telemetry.inject(), wait_for_ready=True)
        try:
            async for response in stream:
                yield response.chunk
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        finally:
            stream.cancel()
