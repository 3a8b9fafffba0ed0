"""Calls to the node's coordinator."""

from __future__ import annotations

from typing import Protocol

from rouse_common.rpc import Channels, call
from rouse_contracts.coordination import CoordinationServiceStub, StopInstanceRequest

STOP_TIMEOUT_S = 5.0


class Coordinator(Protocol):
    """What gpu-server asks of the coordinator."""

    async def end_instance(self, instance_id: str, reason: str) -> None: ...


class CoordinatorClient:
    """Speaks CoordinationService."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channels, self._address = channels, address

    async def end_instance(self, instance_id: str, reason: str) -> None:
        """Ends an instance's process at once. Raises RouseError."""
        request = StopInstanceRequest(instance_id=instance_id, grace_ms=0, reason=reason)
        stub = CoordinationServiceStub(self._channels.get(self._address))
        await call(stub.StopInstance, request, timeout_s=STOP_TIMEOUT_S)
