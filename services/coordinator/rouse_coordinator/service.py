"""RPC handlers: translate, ask, answer."""

from __future__ import annotations

import re

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from rouse_common.errors import InvalidArgument
from rouse_contracts import coordination
from rouse_coordinator.ahead import Ahead
from rouse_coordinator.config import MAX_INSTANCE_ID
from rouse_coordinator.instances import Instances
from rouse_coordinator.table import Registration, RegistrationTable

# It becomes part of a file name.
INSTANCE_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_INSTANCE_ID - 1}}}")


class CoordinationServicer(coordination.CoordinationServiceServicer):
    """For the scaler and cluster-manager."""

    def __init__(self, instances: Instances, table: RegistrationTable, ahead: Ahead) -> None:
        self._instances, self._table, self._ahead = instances, table, ahead

    async def StartInstance(
        self, request: coordination.StartInstanceRequest, context: grpc.aio.ServicerContext
    ) -> coordination.StartInstanceResponse:
        if not INSTANCE_ID.fullmatch(request.instance_id):
            raise InvalidArgument(
                "BAD_INSTANCE_ID",
                f"instance_id '{request.instance_id[:64]}': want 1 to {MAX_INSTANCE_ID} letters, digits, '_' and '-'",
            )
        if not request.version.version_id or not request.version.spec.name:
            raise InvalidArgument("BAD_VERSION", f"instance {request.instance_id}: the version has no id or no name")
        self._instances.start(request.instance_id, request.version, dict(request.secrets))
        return coordination.StartInstanceResponse()

    async def StopInstance(
        self, request: coordination.StopInstanceRequest, context: grpc.aio.ServicerContext
    ) -> coordination.StopInstanceResponse:
        reason = request.reason or "asked to stop"
        await self._instances.stop(request.instance_id, request.grace_ms / 1000, reason)
        return coordination.StopInstanceResponse()

    async def StageVersion(
        self, request: coordination.StageVersionRequest, context: grpc.aio.ServicerContext
    ) -> coordination.StageVersionResponse:
        if not request.version.version_id or not request.version.spec.name:
            raise InvalidArgument("BAD_VERSION", "the version to be staged has no id or no name")
        self._ahead.stage(request.version)
        return coordination.StageVersionResponse()

    async def ListInstances(
        self, request: coordination.ListInstancesRequest, context: grpc.aio.ServicerContext
    ) -> coordination.ListInstancesResponse:
        return coordination.ListInstancesResponse(instances=[_message(row) for row in self._table.rows()])


class InstanceServicer(coordination.InstanceServiceServicer):
    """For the instances themselves."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances

    async def GetAssignment(
        self, request: coordination.GetAssignmentRequest, context: grpc.aio.ServicerContext
    ) -> coordination.GetAssignmentResponse:
        return await self._instances.assignment(request.instance_id, request.token)

    async def ReportLoaded(
        self, request: coordination.ReportLoadedRequest, context: grpc.aio.ServicerContext
    ) -> coordination.ReportLoadedResponse:
        self._instances.loaded(request)
        return coordination.ReportLoadedResponse()


def _message(row: Registration) -> coordination.Registration:
    since = Timestamp()
    since.FromNanoseconds(int(row.machine.since * 1e9))
    return coordination.Registration(
        instance_id=row.instance_id,
        function=row.function,
        version_id=row.version.version_id,
        role=row.role.value,
        state=row.state.value,
        reason=row.machine.reason,
        pid=row.pid,
        address=row.address,
        since=since,
        isolation=row.isolation,
    )
