"""The RPCs of rouse.cluster.v1: each looks at the gate and hands on."""

from __future__ import annotations

from typing import TypeAlias

import grpc

from rouse_cluster_manager.catalogue import Catalogue
from rouse_cluster_manager.deletion import Deletions
from rouse_cluster_manager.fleet import Fleet
from rouse_cluster_manager.instances import Instances
from rouse_cluster_manager.ledger import Ledger
from rouse_cluster_manager.publisher import RoutingPublisher
from rouse_cluster_manager.supervisor import Gate
from rouse_cluster_manager.traffic import Traffic
from rouse_common.rpc import remaining_s
from rouse_contracts import cluster

Context: TypeAlias = grpc.aio.ServicerContext
# A deletion waits for running requests, for nodes and for disks.
DELETE_TIMEOUT_S = 60.0
# What is left of a caller's deadline for the answer to travel.
ANSWER_MARGIN_S = 0.1


class ClusterService(cluster.ClusterServiceServicer):
    """See proto/rouse/cluster/v1/cluster.proto. Every RPC: UNAVAILABLE DATABASE_DOWN | STANDBY."""

    def __init__(
        self, gate: Gate, fleet: Fleet, catalogue: Catalogue, traffic: Traffic, instances: Instances,
        deletions: Deletions, ledger: Ledger, routing: RoutingPublisher, heartbeat_ms: int,
    ) -> None:  # fmt: skip
        self._gate, self._fleet, self._catalogue, self._instances = gate, fleet, catalogue, instances
        self._traffic = traffic
        self._deletions, self._ledger, self._routing = deletions, ledger, routing
        self._heartbeat_ms = heartbeat_ms

    async def RegisterNode(
        self, request: cluster.RegisterNodeRequest, context: Context
    ) -> cluster.RegisterNodeResponse:
        self._gate.check()
        await self._fleet.register(request.node)
        return cluster.RegisterNodeResponse(heartbeat_interval_ms=self._heartbeat_ms)

    async def Heartbeat(self, request: cluster.HeartbeatRequest, context: Context) -> cluster.HeartbeatResponse:
        # Before the gate: a node that sends heartbeats is not lost because the database is away.
        self._fleet.hear(request.node_id, request.incarnation)
        self._gate.check()
        return cluster.HeartbeatResponse(stop_instance_ids=await self._fleet.heartbeat(request))

    async def ListNodes(self, request: cluster.ListNodesRequest, context: Context) -> cluster.ListNodesResponse:
        self._gate.check()
        return cluster.ListNodesResponse(nodes=await self._fleet.list_nodes())

    async def CreateVersion(
        self, request: cluster.CreateVersionRequest, context: Context
    ) -> cluster.CreateVersionResponse:
        self._gate.check()
        return await self._catalogue.create_version(request)

    async def GetFunction(self, request: cluster.GetFunctionRequest, context: Context) -> cluster.GetFunctionResponse:
        self._gate.check()
        return await self._catalogue.get(request.name)

    async def ListFunctions(
        self, request: cluster.ListFunctionsRequest, context: Context
    ) -> cluster.ListFunctionsResponse:
        self._gate.check()
        return await self._catalogue.listed()

    async def SetTraffic(self, request: cluster.SetTrafficRequest, context: Context) -> cluster.SetTrafficResponse:
        self._gate.check()
        return cluster.SetTrafficResponse(function=await self._traffic.set(request.name, request.shares))

    async def RollBack(self, request: cluster.RollBackRequest, context: Context) -> cluster.RollBackResponse:
        self._gate.check()
        return cluster.RollBackResponse(function=await self._traffic.roll_back(request.name))

    async def DeleteFunction(
        self, request: cluster.DeleteFunctionRequest, context: Context
    ) -> cluster.DeleteFunctionResponse:
        self._gate.check()
        await self._deletions.delete(request.name, remaining_s(context, DELETE_TIMEOUT_S) - ANSWER_MARGIN_S)
        return cluster.DeleteFunctionResponse()

    async def CreateInstance(
        self, request: cluster.CreateInstanceRequest, context: Context
    ) -> cluster.CreateInstanceResponse:
        self._gate.check()
        placed = await self._instances.create(request.version_id, request.reason)
        return cluster.CreateInstanceResponse(
            instance=placed.instance,
            version=placed.version,
            coordinator_address=placed.coordinator_address,
            placement_reason=placed.reason,
            secrets=placed.secrets,
        )

    async def ReportInstance(
        self, request: cluster.ReportInstanceRequest, context: Context
    ) -> cluster.ReportInstanceResponse:
        self._gate.check()
        await self._instances.report(request.instance_id, request.state, request.reason, request.isolation)
        return cluster.ReportInstanceResponse()

    async def ListInstances(
        self, request: cluster.ListInstancesRequest, context: Context
    ) -> cluster.ListInstancesResponse:
        self._gate.check()
        found = await self._instances.listed(request.function, request.include_ended)
        return cluster.ListInstancesResponse(instances=found)

    async def RecordUsage(self, request: cluster.RecordUsageRequest, context: Context) -> cluster.RecordUsageResponse:
        self._gate.check()
        await self._ledger.record_usage(list(request.records))
        return cluster.RecordUsageResponse()

    async def GetUsage(self, request: cluster.GetUsageRequest, context: Context) -> cluster.GetUsageResponse:
        self._gate.check()
        return await self._ledger.usage(request)

    async def ListEvents(self, request: cluster.ListEventsRequest, context: Context) -> cluster.ListEventsResponse:
        self._gate.check()
        return cluster.ListEventsResponse(events=await self._ledger.events(request.subject, request.limit))

    async def GetRoutingTable(
        self, request: cluster.GetRoutingTableRequest, context: Context
    ) -> cluster.GetRoutingTableResponse:
        self._gate.check()
        return cluster.GetRoutingTableResponse(table=await self._routing.table())
