"""DeviceService: leases over a link, since every request needs one; everything else over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from rouse_common.errors import InvalidArgument
from rouse_common.link import Buffer, Incoming, LinkServer
from rouse_contracts.device import (
    AcquireRequest,
    AcquireResponse,
    DescribeDevicesRequest,
    DescribeDevicesResponse,
    DeviceServiceServicer,
    DropVersionRequest,
    DropVersionResponse,
    ReleaseAllRequest,
    ReleaseAllResponse,
    ReleaseRequest,
    StageVersionRequest,
    StageVersionResponse,
    SyncExecutorsRequest,
    SyncExecutorsResponse,
    TapeAccess,
)
from rouse_contracts.links import ACQUIRE, RELEASE
from rouse_gpu_server.logic.leasing import Call, Leasing
from rouse_gpu_server.logic.membership import Membership
from rouse_gpu_server.state.records import Lease

Context: TypeAlias = grpc.aio.ServicerContext


class DeviceService(DeviceServiceServicer):
    """Handlers of the contract but for leases; the logic is elsewhere."""

    def __init__(
        self, leasing: Leasing, membership: Membership, describe: Callable[[], DescribeDevicesResponse]
    ) -> None:
        self._leasing, self._membership, self._describe = leasing, membership, describe

    async def StageVersion(self, request: StageVersionRequest, context: Context) -> StageVersionResponse:
        _require(request.version.version_id, "version.version_id")
        artefact = await self._membership.stage_version(request.version)
        return StageVersionResponse(
            artefact_path=str(artefact.path),
            image_path=str(artefact.image) if artefact.image is not None else "",
            artefact=artefact.message,
            segment_folders=self._membership.segment_folders(request.version, artefact),
            states_path=self._membership.states_path(artefact),
        )

    async def DropVersion(self, request: DropVersionRequest, context: Context) -> DropVersionResponse:
        _require(request.version_id, "version_id")
        device, host, disk = await self._membership.drop_version(request.version_id, request.artefact_digest)
        return DropVersionResponse(device_freed_bytes=device, host_freed_bytes=host, disk_freed_bytes=disk)

    async def SyncExecutors(self, request: SyncExecutorsRequest, context: Context) -> SyncExecutorsResponse:
        for executor in request.executors:
            _require(executor.instance_id, "executors.instance_id")
            _require(executor.version.version_id, "executors.version.version_id")
        self._membership.sync(request.executors)
        return SyncExecutorsResponse()

    async def ReleaseAll(self, request: ReleaseAllRequest, context: Context) -> ReleaseAllResponse:
        _require(request.owner, "owner")
        return ReleaseAllResponse(released=self._leasing.release_all(request.owner, request.incarnation))

    async def DescribeDevices(self, request: DescribeDevicesRequest, context: Context) -> DescribeDevicesResponse:
        return self._describe()


class LeaseLink:
    """Acquire and Release."""

    def __init__(self, leasing: Leasing, tapes: Callable[[Lease], TapeAccess | None]) -> None:
        self._leasing, self._tapes = leasing, tapes

    def add_to(self, server: LinkServer) -> None:
        server.add(ACQUIRE, self.acquire)
        server.add(RELEASE, self.release)

    async def acquire(self, message: Buffer, incoming: Incoming) -> Sequence[Buffer]:
        request = _parsed(AcquireRequest, message)
        _require(request.version_id, "version_id")
        call = Call(
            request.version_id, request.request_id, request.owner, request.incarnation, request.acquire_id,
            request.hold_s, request.instance_id, request.tape_key, request.tenant, request.tenant_weight,
        )  # fmt: skip
        granted = await self._leasing.acquire(call, incoming.remaining_s)
        lease = granted.lease
        response = AcquireResponse(
            lease_id=lease.lease_id,
            instance_id=lease.executor.instance_id,
            executor_address=lease.executor.address,
            device=lease.device_name,
            wait_ms=granted.wait_ms,
            swap_ms=granted.swap_ms,
            swapped_in=granted.swapped_in,
            reason=granted.reason,
            tapes=self._tapes(lease),
        )
        return (response.SerializeToString(),)

    async def release(self, message: Buffer, incoming: Incoming) -> Sequence[Buffer]:
        request = _parsed(ReleaseRequest, message)
        if request.lease_id:
            self._leasing.release(
                request.lease_id, request.device_ms, request.abandoned, request.requests or 1, request.replays
            )
        else:
            _require(request.acquire_id, "lease_id or acquire_id")
            self._leasing.release_lost(request.acquire_id, request.abandoned)
        return ()


M = TypeVar("M", bound=Message)


def _parsed(kind: type[M], message: Buffer) -> M:
    try:
        return kind.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidArgument("BAD_REQUEST", f"that is no {kind.DESCRIPTOR.full_name}: {error}") from None


def _require(value: str, name: str) -> None:
    if not value:
        raise InvalidArgument("MISSING_FIELD", f"{name} is empty; it is required", field=name)
