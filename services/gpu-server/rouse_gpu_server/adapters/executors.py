"""Calls to executors over their Unix sockets."""

from __future__ import annotations

from typing import Protocol

from rouse_common.rpc import Channels, call
from rouse_contracts.device import (
    AttachRequest,
    DetachRequest,
    ExecutorServiceStub,
    ListRecordingsRequest,
    ListRecordingsResponse,
)


class Executors(Protocol):
    """What gpu-server asks of an executor. All raise RouseError."""

    async def attach(self, address: str, request: AttachRequest, timeout_s: float) -> None: ...

    async def detach(self, address: str, timeout_s: float) -> None: ...

    async def recordings(self, address: str, timeout_s: float) -> ListRecordingsResponse: ...

    async def forget(self, address: str) -> None: ...


class ExecutorClient:
    """Speaks ExecutorService."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    async def attach(self, address: str, request: AttachRequest, timeout_s: float) -> None:
        """Maps a segment into the executor."""
        await call(ExecutorServiceStub(self._channels.get(address)).Attach, request, timeout_s=timeout_s)

    async def detach(self, address: str, timeout_s: float) -> None:
        """Returns when the executor is idle and has nothing mapped."""
        await call(ExecutorServiceStub(self._channels.get(address)).Detach, DetachRequest(), timeout_s=timeout_s)

    async def recordings(self, address: str, timeout_s: float) -> ListRecordingsResponse:
        """What the executor's session has recorded."""
        stub = ExecutorServiceStub(self._channels.get(address))
        answer: ListRecordingsResponse = await call(stub.ListRecordings, ListRecordingsRequest(), timeout_s=timeout_s)
        return answer

    async def forget(self, address: str) -> None:
        """Closes the connection to an executor that is gone."""
        await self._channels.forget(address)
