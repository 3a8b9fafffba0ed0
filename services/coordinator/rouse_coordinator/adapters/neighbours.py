"""gpu-server, node-router, cluster-manager and the instances' executors, as calls with deadlines."""

from __future__ import annotations

from collections.abc import Sequence

from rouse_common.rpc import Channels, call
from rouse_contracts import cluster, device, node
from rouse_contracts.functions import FunctionVersion

CALL_TIMEOUT_S = 5.0
# A neighbour that hangs must not hold a heartbeat up.
DESCRIBE_TIMEOUT_S = 1.0


class GpuServer:
    """This node's gpu-server."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._stub = device.DeviceServiceStub(channels.get(address))

    async def stage(self, version: FunctionVersion, timeout_s: float) -> device.StageVersionResponse:
        """Brings a version to the node; waits for a gpu-server that restarts. Raises RouseError."""
        request = device.StageVersionRequest(version=version)
        answer: device.StageVersionResponse = await call(
            self._stub.StageVersion, request, timeout_s=timeout_s, wait_for_ready=True
        )
        return answer

    async def sync(self, executors: Sequence[device.Executor]) -> None:
        """Tells all executors that serve. Raises RouseError."""
        request = device.SyncExecutorsRequest(executors=executors)
        await call(self._stub.SyncExecutors, request, timeout_s=CALL_TIMEOUT_S)

    async def describe(self) -> device.DescribeDevicesResponse:
        """Raises RouseError."""
        answer: device.DescribeDevicesResponse = await call(
            self._stub.DescribeDevices, device.DescribeDevicesRequest(), timeout_s=DESCRIBE_TIMEOUT_S
        )
        return answer


class NodeRouter:
    """This node's node-router."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._stub = node.NodeServiceStub(channels.get(address))

    async def queues(self) -> Sequence[node.QueueSummary]:
        """Raises RouseError."""
        answer = await call(self._stub.DescribeQueues, node.DescribeQueuesRequest(), timeout_s=DESCRIBE_TIMEOUT_S)
        queues: Sequence[node.QueueSummary] = answer.queues
        return queues


class ClusterManager:
    """The control plane."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._stub = cluster.ClusterServiceStub(channels.get(address))

    async def register(self, entry: cluster.Node) -> float:
        """Seconds between heartbeats. Raises RouseError."""
        request = cluster.RegisterNodeRequest(node=entry)
        answer = await call(self._stub.RegisterNode, request, timeout_s=CALL_TIMEOUT_S)
        return float(answer.heartbeat_interval_ms) / 1000

    async def heartbeat(self, request: cluster.HeartbeatRequest) -> Sequence[str]:
        """Instances to stop. Raises RouseError, NotFound where the node has to register again."""
        answer = await call(self._stub.Heartbeat, request, timeout_s=CALL_TIMEOUT_S)
        instance_ids: Sequence[str] = answer.stop_instance_ids
        return instance_ids

    async def report(self, request: cluster.ReportInstanceRequest) -> None:
        """Raises RouseError."""
        await call(self._stub.ReportInstance, request, timeout_s=CALL_TIMEOUT_S)


class Executors:
    """The ExecutorService of each instance."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    async def detach(self, address: str, timeout_s: float) -> None:
        """Waits until the instance executes nothing any more. Raises RouseError."""
        stub = device.ExecutorServiceStub(self._channels.get(address))
        await call(stub.Detach, device.DetachRequest(), timeout_s=timeout_s)

    async def forget(self, address: str) -> None:
        """Closes the channel to an instance that is gone."""
        await self._channels.forget(address)
