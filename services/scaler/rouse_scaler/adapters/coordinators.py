"""The coordinators of the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from rouse_common.errors import Unavailable
from rouse_common.rpc import Channels, call
from rouse_common.tls import MeshTls
from rouse_contracts import coordination
from rouse_contracts.functions import FunctionVersion

START_TIMEOUT_S = 5.0
# Beyond its grace an instance is killed, and the coordinator cleans up after it.
STOP_MARGIN_S = 10.0


class Coordinators:
    """CoordinationService of every node, by its address. Channels to nodes that went away are closed."""

    def __init__(self, max_message_bytes: int, tls: MeshTls | None = None) -> None:
        self._channels = Channels(max_message_bytes, tls)
        # Calls under way by address.
        self._calls: Counter[str] = Counter()

    async def start(self, address: str, instance_id: str, version: FunctionVersion, secrets: Mapping[str, str]) -> None:
        """Has an instance started, with the values of its secrets; again if need be. Raises RouseError."""
        request = coordination.StartInstanceRequest(instance_id=instance_id, version=version, secrets=secrets)
        with self._stub(address) as stub:
            await call(stub.StartInstance, request, timeout_s=START_TIMEOUT_S)

    async def stop(self, address: str, instance_id: str, grace_s: float, reason: str) -> None:
        """Has an instance stopped; returns when it is gone. Raises RouseError."""
        request = coordination.StopInstanceRequest(
            instance_id=instance_id, grace_ms=round(grace_s * 1000), reason=reason
        )
        with self._stub(address) as stub:
            await call(stub.StopInstance, request, timeout_s=grace_s + STOP_MARGIN_S)

    async def stage(self, address: str, version: FunctionVersion) -> None:
        """Has a version's weights brought to the node. Raises RouseError."""
        with self._stub(address) as stub:
            await call(stub.StageVersion, coordination.StageVersionRequest(version=version), timeout_s=START_TIMEOUT_S)

    async def keep(self, addresses: Collection[str]) -> None:
        """Forgets the coordinators at other addresses that are not being called."""
        for address in [known for known, calls in self._calls.items() if known not in addresses and not calls]:
            del self._calls[address]
            await self._channels.forget(address)

    async def close(self) -> None:
        await self._channels.close()

    @contextmanager
    def _stub(self, address: str) -> Iterator[coordination.CoordinationServiceStub]:
        if not address:
            raise Unavailable("NODE_UNKNOWN", "cluster-manager knows no coordinator of that node; it may have gone")
        self._calls[address] += 1
        try:
            yield coordination.CoordinationServiceStub(self._channels.get(address))
        finally:
            self._calls[address] -= 1
