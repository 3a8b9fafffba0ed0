"""In-process doubles of what a coordinator speaks with: gpu-server, node-router and cluster-manager.

Real gRPC servers that keep what they are told; `stop` and `start` at the same address play a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from rouse_common.errors import NotFound, RouseError
from rouse_contracts import cluster, device, node
from rouse_contracts.functions import DeviceSummary
from rouse_testkit.artefacts import Staged
from rouse_testkit.served import Served

HEARTBEAT_MS = 100


class _Double(Served):
    """A server that can be waited on."""

    def __init__(self, register: Any, contract: Any) -> None:
        super().__init__(register, contract)
        self.changed = asyncio.Condition()

    async def note(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], object], timeout_s: float = 60.0) -> None:
        """Waits until something that happens here makes the condition true. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(condition)


class GpuServerDouble(_Double, device.DeviceServiceServicer):
    """Has every version staged already, and keeps the executors it was told last."""

    def __init__(self, *staged: Staged) -> None:
        super().__init__(device.add_DeviceServiceServicer_to_server, device.DESCRIPTOR)
        self.staged = {entry.version.version_id: entry for entry in staged}
        self.executors: list[device.Executor] = []
        self.syncs = self.stagings = 0
        self.refusal: RouseError | None = None
        self.staging = asyncio.Event()
        self.staging.set()

    async def StageVersion(
        self, request: device.StageVersionRequest, context: grpc.aio.ServicerContext
    ) -> device.StageVersionResponse:
        await self.staging.wait()
        if self.refusal is not None:
            raise self.refusal
        entry = self.staged[request.version.version_id]
        self.stagings += 1
        await self.note()
        return device.StageVersionResponse(
            artefact_path=str(entry.folder), image_path=entry.image_path, artefact=entry.artefact
        )

    async def SyncExecutors(
        self, request: device.SyncExecutorsRequest, context: grpc.aio.ServicerContext
    ) -> device.SyncExecutorsResponse:
        self.executors = list(request.executors)
        self.syncs += 1
        await self.note()
        return device.SyncExecutorsResponse()

    async def DescribeDevices(
        self, request: device.DescribeDevicesRequest, context: grpc.aio.ServicerContext
    ) -> device.DescribeDevicesResponse:
        return device.DescribeDevicesResponse(
            devices=[DeviceSummary(name="cpu0", kind="host", capacity_bytes=1 << 30)], host_capacity_bytes=1 << 30
        )


class NodeRouterDouble(_Double, node.NodeServiceServicer):
    """Has three requests waiting and one executing."""

    def __init__(self) -> None:
        super().__init__(node.add_NodeServiceServicer_to_server, node.DESCRIPTOR)

    async def DescribeQueues(
        self, request: node.DescribeQueuesRequest, context: grpc.aio.ServicerContext
    ) -> node.DescribeQueuesResponse:
        return node.DescribeQueuesResponse(queues=[node.QueueSummary(function="f", queued=3, executing=1)])


class ClusterDouble(_Double, cluster.ClusterServiceServicer):
    """Knows the nodes that registered, and keeps what is reported of instances, in order."""

    def __init__(self) -> None:
        super().__init__(cluster.add_ClusterServiceServicer_to_server, cluster.DESCRIPTOR)
        self.nodes: dict[str, cluster.Node] = {}
        self.registrations = 0
        self.heartbeats: list[cluster.HeartbeatRequest] = []
        self.reports: dict[str, list[cluster.ReportInstanceRequest]] = {}
        self.to_stop: set[str] = set()

    def states(self, instance_id: str) -> list[str]:
        """The states reported of an instance, as READY."""
        prefix = "INSTANCE_STATE_"
        return [
            cluster.InstanceState.Name(report.state).removeprefix(prefix)
            for report in self.reports.get(instance_id, [])
        ]

    async def RegisterNode(
        self, request: cluster.RegisterNodeRequest, context: grpc.aio.ServicerContext
    ) -> cluster.RegisterNodeResponse:
        self.nodes[request.node.node_id] = request.node
        self.registrations += 1
        await self.note()
        return cluster.RegisterNodeResponse(heartbeat_interval_ms=HEARTBEAT_MS)

    async def Heartbeat(
        self, request: cluster.HeartbeatRequest, context: grpc.aio.ServicerContext
    ) -> cluster.HeartbeatResponse:
        if request.node_id not in self.nodes:
            raise NotFound("NODE_NOT_REGISTERED", f"node {request.node_id} is not registered", node=request.node_id)
        self.heartbeats.append(request)
        await self.note()
        return cluster.HeartbeatResponse(stop_instance_ids=sorted(self.to_stop & set(request.instance_ids)))

    async def ReportInstance(
        self, request: cluster.ReportInstanceRequest, context: grpc.aio.ServicerContext
    ) -> cluster.ReportInstanceResponse:
        self.reports.setdefault(request.instance_id, []).append(request)
        await self.note()
        return cluster.ReportInstanceResponse()
