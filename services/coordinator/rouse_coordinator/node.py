"""The node towards the control plane: registration, heartbeats, instances to stop."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from rouse_common.clock import Clock
from rouse_common.errors import NotFound, RouseError
from rouse_contracts.cluster import DeviceInfo, HeartbeatRequest, Node, NodeReport
from rouse_contracts.device import DescribeDevicesResponse
from rouse_coordinator.adapters.neighbours import ClusterManager, GpuServer, NodeRouter
from rouse_coordinator.instances import Instances

LOG = logging.getLogger(__name__)

RETRY_S = 0.5
# How long the last known state of devices stands for a gpu-server that does not answer.
STALE_AFTER_S = 5.0


@dataclass(frozen=True)
class Addresses:
    """host:port of the node's services, as others reach them."""

    node_router: str
    node_router_link: str
    gpu_server: str
    coordinator: str


class NodeAgent:
    """Registers the node and keeps it registered.

    Args:
        registered: called at each registration that succeeded.
        stop_grace_s: grace of instances that the control plane wants stopped.
    """

    def __init__(
        self,
        node_id: str,
        addresses: Addresses,
        gpu_server: GpuServer,
        node_router: NodeRouter,
        cluster_manager: ClusterManager,
        instances: Instances,
        group: asyncio.TaskGroup,
        clock: Clock,
        registered: Callable[[], None],
        stop_grace_s: float,
    ) -> None:
        self._node_id, self._addresses = node_id, addresses
        self._gpu_server, self._node_router, self._cluster_manager = gpu_server, node_router, cluster_manager
        self._instances, self._group, self._clock = instances, group, clock
        self._registered, self._stop_grace_s = registered, stop_grace_s
        # Instances die with this process, so a new one says so by another incarnation.
        self.incarnation = uuid.uuid4().hex
        self._devices = DescribeDevicesResponse()
        self._devices_at = clock.monotonic()
        self._queued, self._executing = 0, 0
        self._stopping: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            interval_s = await self._register()
            self._registered()
            await self._beat(interval_s)

    async def _register(self) -> float:
        """Tries until it succeeds; seconds between heartbeats."""
        waiting_for = ""
        while True:
            try:
                what = "gpu-server"
                devices = await self._gpu_server.describe()
                what = "cluster-manager"
                interval_s = await self._cluster_manager.register(self._node(devices))
                LOG.info("registered node=%s incarnation=%s devices=%d heartbeat_ms=%.0f", self._node_id,
                         self.incarnation, len(devices.devices), interval_s * 1000)  # fmt: skip
                return interval_s
            except RouseError as error:
                if waiting_for != what:
                    LOG.info("waiting for %s: %s", what, error)
                waiting_for = what
                await asyncio.sleep(RETRY_S)

    async def _beat(self, interval_s: float) -> None:
        """Heartbeats until cluster-manager does not know the node any more."""
        failing = False
        while True:
            next_at = self._clock.monotonic() + interval_s
            request = HeartbeatRequest(
                node_id=self._node_id, incarnation=self.incarnation, report=await self._report(),
                instance_ids=self._instances.live_ids(),
            )  # fmt: skip
            try:
                for instance_id in await self._cluster_manager.heartbeat(request):
                    self._stop(instance_id)
                if failing:
                    LOG.info("heartbeats reach cluster-manager again")
                failing = False
            except NotFound as error:
                LOG.warning("registering again: %s", error)
                return
            except RouseError as error:
                if not failing:
                    LOG.warning("heartbeat failed, trying again every %.1f s: %s", interval_s, error)
                failing = True
            await asyncio.sleep(max(0.0, next_at - self._clock.monotonic()))

    def _stop(self, instance_id: str) -> None:
        if instance_id not in self._stopping:
            self._stopping.add(instance_id)
            self._group.create_task(self._stop_one(instance_id), name=f"stop {instance_id}")

    async def _stop_one(self, instance_id: str) -> None:
        try:
            await self._instances.stop(instance_id, self._stop_grace_s, "the control plane ended it")
        finally:
            self._stopping.discard(instance_id)

    def _node(self, devices: DescribeDevicesResponse) -> Node:
        return Node(
            node_id=self._node_id,
            incarnation=self.incarnation,
            router_address=self._addresses.node_router,
            link_address=self._addresses.node_router_link,
            device_address=self._addresses.gpu_server,
            coordinator_address=self._addresses.coordinator,
            devices=[
                DeviceInfo(name=device.name, kind=device.kind, capacity_bytes=device.capacity_bytes)
                for device in devices.devices
            ],
        )

    async def _report(self) -> NodeReport:
        """What gpu-server and node-router say; without a gpu-server, soon no devices."""
        devices, queues = await asyncio.gather(
            self._gpu_server.describe(), self._node_router.queues(), return_exceptions=True
        )
        now = self._clock.monotonic()
        if isinstance(devices, DescribeDevicesResponse):
            self._devices, self._devices_at = devices, now
        elif not isinstance(devices, RouseError):
            raise devices
        elif now - self._devices_at > STALE_AFTER_S:
            self._devices = DescribeDevicesResponse()
        if isinstance(queues, RouseError):
            self._queued, self._executing = 0, 0
        elif isinstance(queues, BaseException):
            raise queues
        else:
            self._queued = sum(queue.queued for queue in queues)
            self._executing = sum(queue.executing for queue in queues)
        return NodeReport(
            devices=self._devices.devices,
            residency=self._devices.residency,
            host_used_bytes=self._devices.host_used_bytes,
            host_capacity_bytes=self._devices.host_capacity_bytes,
            queued_requests=self._queued,
            executing_requests=self._executing,
        )
