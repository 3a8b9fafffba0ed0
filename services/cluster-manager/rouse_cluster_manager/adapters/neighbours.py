"""Calls to model-repository and to the services of nodes."""

from __future__ import annotations

from rouse_common.errors import FailedPrecondition, NotFound
from rouse_common.rpc import Channels, call
from rouse_common.tls import MeshTls
from rouse_contracts import coordination, device, repository

REPOSITORY_TIMEOUT_S = 20.0
DROP_TIMEOUT_S = 30.0
STOP_MARGIN_S = 10.0


class Neighbours:
    """One channel an address; every call has a deadline and answers typed errors."""

    def __init__(self, model_repository: str, max_message_bytes: int, tls: MeshTls | None = None) -> None:
        self._channels = Channels(max_message_bytes, tls)
        self._repository = repository.RepositoryServiceStub(self._channels.get(model_repository))

    async def artefact(self, digest: str) -> repository.Artefact:
        """What an artefact is. Raises FailedPrecondition ARTEFACT_NOT_FOUND, Unavailable."""
        request = repository.GetArtefactRequest(digest=digest)
        try:
            response = await call(self._repository.GetArtefact, request, timeout_s=REPOSITORY_TIMEOUT_S)
        except NotFound:
            raise FailedPrecondition(
                "ARTEFACT_NOT_FOUND", f"model-repository has no artefact {digest}; deploy the function again",
                artefact=digest,
            ) from None  # fmt: skip
        artefact: repository.Artefact = response.artefact
        return artefact

    async def delete_artefact(self, digest: str) -> None:
        request = repository.DeleteArtefactRequest(digest=digest)
        await call(self._repository.DeleteArtefact, request, timeout_s=REPOSITORY_TIMEOUT_S)

    async def stop_instance(self, address: str, instance_id: str, grace_ms: int, reason: str) -> None:
        """Returns when the instance's process is gone. Raises the RouseError of the node's coordinator."""
        stub = coordination.CoordinationServiceStub(self._channels.get(address))
        request = coordination.StopInstanceRequest(instance_id=instance_id, grace_ms=grace_ms, reason=reason)
        await call(stub.StopInstance, request, timeout_s=grace_ms / 1000 + STOP_MARGIN_S)

    async def drop_version(self, address: str, version_id: str, digest: str) -> None:
        """Has a node give a version's memory back. Raises the RouseError of the node's gpu-server."""
        stub = device.DeviceServiceStub(self._channels.get(address))
        request = device.DropVersionRequest(version_id=version_id, artefact_digest=digest)
        await call(stub.DropVersion, request, timeout_s=DROP_TIMEOUT_S)

    async def forget(self, addresses: set[str]) -> None:
        """Closes the channels to addresses that no node has any more."""
        for address in addresses:
            await self._channels.forget(address)

    async def close(self) -> None:
        await self._channels.close()
