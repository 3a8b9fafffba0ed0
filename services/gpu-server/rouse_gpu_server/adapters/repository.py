"""Calls to model-repository."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

import grpc

from rouse_common import telemetry
from rouse_common.errors import from_rpc_error
from rouse_common.rpc import Channels, call
from rouse_contracts.repository import (
    Artefact,
    GetArtefactRequest,
    GetBlobRequest,
    ListStatesRequest,
    MadeWith,
    PutBlobRequest,
    PutStateRequest,
    RepositoryServiceStub,
    State,
)

CALL_TIMEOUT_S = 10.0
CHUNK_BYTES = 1 << 20


class Repository(Protocol):
    """Where artefacts come from. All raise RouseError."""

    async def get_artefact(self, digest: str) -> Artefact: ...

    def get_blob(self, digest: str, offset_bytes: int, timeout_s: float) -> AsyncIterator[bytes]: ...

    async def list_states(self, artefact: str, made_with: MadeWith) -> Sequence[State]: ...

    async def put_state(self, state: State, path: Path, timeout_s: float) -> State: ...


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

    async def list_states(self, artefact: str, made_with: MadeWith) -> Sequence[State]:
        """The states of an artefact that hold for all that `made_with` names. Raises NotFound ARTEFACT_NOT_FOUND."""
        stub = RepositoryServiceStub(self._channels.get(self._address))
        request = ListStatesRequest(artefact_digest=artefact, made_with=made_with)
        response = await call(stub.ListStates, request, timeout_s=CALL_TIMEOUT_S, wait_for_ready=True)
        states: Sequence[State] = response.states
        return states

    async def put_state(self, state: State, path: Path, timeout_s: float) -> State:
        """Uploads a state's file and records it; what the repository made of it. Raises what PutState documents."""
        stub = RepositoryServiceStub(self._channels.get(self._address))

        async def parts() -> AsyncIterator[PutBlobRequest]:
            yield PutBlobRequest(header=PutBlobRequest.Header(digest=state.digest, size_bytes=state.size_bytes))
            with await asyncio.to_thread(path.open, "rb") as file:
                while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    yield PutBlobRequest(chunk=chunk)

        try:
            await stub.PutBlob(parts(), timeout=timeout_s, metadata=telemetry.inject(), wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        response = await call(stub.PutState, PutStateRequest(state=state), timeout_s=CALL_TIMEOUT_S)
        kept: State = response.state
        return kept

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
