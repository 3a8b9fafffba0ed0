"""DeviceService over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import grpc

from rouse_common.errors import InvalidArgument
from rouse_common.rpc import remaining_s
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
    ReleaseResponse,
    StageVersionRequest,
    StageVersionResponse,
    SyncExecutorsRequest,
    SyncExecutorsResponse,
)
from rouse_gpu_server.logic.leasing import Call, Leasing
from rouse_gpu_server.logic.membership import Membership

Context: TypeAlias = grpc.aio.ServicerContext


class DeviceService(DeviceServiceServicer):
    """Handlers of the contract; the logic is elsewhere."""

    def __init__(
        self,
        leasing: Leasing,
        membership: Membership,
        describe: Callable[[], DescribeDevicesResponse],
        default_deadline_s: float,
    ) -> None:
        self._leasing, self._membership, self._describe = leasing, membership, describe
        self._default_deadline_s = default_deadline_s

    async def StageVersion(self, request: StageVersionRequest, context: Context) -> StageVersionResponse:
        _require(request.version.version_id, "version.version_id")
        artefact = await self._membership.stage_version(request.version)
        return StageVersionResponse(
            artefact_path=str(artefact.path),
            image_path=str(artefact.image) if artefact.image is not None else "",
            artefact=artefact.message,
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

    async def Acquire(self, request: AcquireRequest, context: Context) -> AcquireResponse:
        _require(request.version_id, "version_id")
        timeout_s = remaining_s(context, self._default_deadline_s)
        call = Call(request.version_id, request.request_id, request.owner, request.incarnation, request.acquire_id)
        granted = await self._leasing.acquire(call, timeout_s)
        lease = granted.lease
        return AcquireResponse(
            lease_id=lease.lease_id,
            instance_id=lease.executor.instance_id,
            executor_address=lease.executor.address,
            device=lease.device_name,
            wait_ms=granted.wait_ms,
            swap_ms=granted.swap_ms,
            swapped_in=granted.swapped_in,
            reason=granted.reason,
        )

    async def Release(self, request: ReleaseRequest, context: Context) -> ReleaseResponse:
        if request.lease_id:
            self._leasing.release(request.lease_id, request.device_ms, request.abandoned)
        else:
            _require(request.acquire_id, "lease_id or acquire_id")
            self._leasing.release_lost(request.acquire_id, request.abandoned)
        return ReleaseResponse()

    async def ReleaseAll(self, request: ReleaseAllRequest, context: Context) -> ReleaseAllResponse:
        _require(request.owner, "owner")
        return ReleaseAllResponse(released=self._leasing.release_all(request.owner, request.incarnation))

    async def DescribeDevices(self, request: DescribeDevicesRequest, context: Context) -> DescribeDevicesResponse:
        return self._describe()


def _require(value: str, name: str) -> None:
    if not value:
        raise InvalidArgument("MISSING_FIELD", f"{name} is empty; it is required", field=name)
