"""In-process doubles of what a gateway talks to: real gRPC servers with the contracts' behaviour.

One `Control` is cluster-manager, scaler and model-repository of a small mesh, each on a port of its own. What
becomes of a wake-up, and what a node does with a request, is a coroutine that a test may replace.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rouse_bus import Bus, subjects
from rouse_common.errors import FailedPrecondition, InvalidArgument, NotFound, RouseError
from rouse_common.link import Incoming
from rouse_contracts import cluster, functions, node, repository, scaling
from rouse_contracts.links import INFER
from rouse_testkit.links import Linked, answered
from rouse_testkit.served import Served

FP32_IDENTITY = functions.Signature(
    inputs=[functions.TensorSpec(name="x", datatype="FP32", shape=[-1])],
    outputs=[functions.TensorSpec(name="y", datatype="FP32", shape=[-1])],
)

# A coroutine with the one response, or an async generator of several.
Execute = Callable[[node.InferRequest], Any]


async def echo(request: node.InferRequest) -> node.InferResponse:
    """Answers every input x… as an output y…, with half a millisecond of execution."""
    batch = functions.TensorBatch.FromString(request.inputs)
    for tensor in batch.tensors:
        tensor.name = tensor.name.replace("x", "y")
    return node.InferResponse(
        outputs=batch.SerializeToString(), timings=functions.Timings(execute_ms=0.5), device="gpu0"
    )


class NodeDouble(node.NodeServiceServicer):
    """A node-router: `served` is its link, `described` its gRPC server. `behaviour` says what Infer does, also as a
    generator; replace it at any time."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.behaviour: Execute = echo
        self.requests: list[node.InferRequest] = []
        self.timeouts_s: list[float] = []
        self.cancelled = 0
        self.queues: list[node.QueueSummary] = []
        self.arrived = asyncio.Event()
        self.served = Linked()
        self.served.add(INFER, node.InferRequest, self._infer)
        self.described = Served(node.add_NodeServiceServicer_to_server, node.DESCRIPTOR, self)

    async def _infer(self, request: node.InferRequest, call: Incoming) -> node.InferResponse | None:
        self.requests.append(request)
        self.timeouts_s.append(call.remaining_s)
        self.arrived.set()
        try:
            return await answered(self.behaviour(request), call)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def DescribeQueues(self, request: node.DescribeQueuesRequest, context: Any) -> node.DescribeQueuesResponse:
        return node.DescribeQueuesResponse(queues=self.queues)


@dataclass
class Function:
    """A function as the control plane knows it; `instances` are pairs of version id and node id. Its state is
    that of its active version, unless `version_states` says more."""

    name: str
    versions: list[functions.FunctionVersion] = field(default_factory=list)
    state: int = functions.FUNCTION_STATE_SLEEPING
    reason: str = ""
    instances: list[tuple[str, str]] = field(default_factory=list)
    traffic: list[functions.TrafficShare] = field(default_factory=list)
    previous: list[functions.TrafficShare] = field(default_factory=list)
    version_states: dict[str, tuple[int, str]] = field(default_factory=dict)
    tenant: str = "default"

    @property
    def active(self) -> functions.FunctionVersion:
        if not self.traffic:
            return self.versions[-1]
        return self.versions[max(self.traffic, key=lambda share: (share.percent, share.version)).version - 1]


class Control(cluster.ClusterServiceServicer, scaling.ScalingServiceServicer):
    """The control plane of a small mesh, as far as a gateway sees it.

    `on_wake(function, version_id)` says what becomes of a wake-up; `changed` publishes the table, over the
    bus where there is one.
    """

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.nodes: dict[str, NodeDouble] = {}
        self.residency: dict[tuple[str, str], str] = {}
        # Tapes by version and node; a version has them only where it has residency.
        self.tapes: dict[tuple[str, str], int] = {}
        self.queued: dict[str, int] = {}
        self.generation = 1
        self.wakes: list[tuple[str, str]] = []
        self.on_wake: Callable[[str, str], Awaitable[None]] = self.start_instance
        self.bus: Bus | None = None
        self.fetches = 0
        # Version ids by deployment id.
        self.deployments: dict[str, str] = {}
        self.repository = RepositoryDouble()
        self.cluster_server = Served(cluster.add_ClusterServiceServicer_to_server, cluster.DESCRIPTOR, self)
        self.scaler_server = Served(scaling.add_ScalingServiceServicer_to_server, scaling.DESCRIPTOR, self)
        self.repository_server = Served(
            repository.add_RepositoryServiceServicer_to_server, repository.DESCRIPTOR, self.repository
        )

    # ---- What tests do --------------------------------------------------------------------------------

    async def start(self) -> None:
        for server in (self.cluster_server, self.scaler_server, self.repository_server):
            await server.start()

    async def stop(self) -> None:
        for server in (self.cluster_server, self.scaler_server, self.repository_server):
            await server.stop()
        for double in self.nodes.values():
            await double.served.kill()
            await double.described.stop()

    async def add_node(self, node_id: str) -> NodeDouble:
        double = self.nodes[node_id] = NodeDouble(node_id)
        await double.served.start()
        await double.described.start()
        return double

    def add_function(
        self,
        name: str,
        signature: functions.Signature = FP32_IDENTITY,
        *,
        nodes: Sequence[str] = (),
        weights: int = 0,
        **spec_fields: Any,
    ) -> Function:
        """One more version of a function, with a ready instance on each of `nodes`."""
        function = self.functions.setdefault(name, Function(name))
        number = len(function.versions) + 1
        spec = functions.FunctionSpec(name=name, signature=signature, **spec_fields)
        function.versions.append(
            functions.FunctionVersion(
                version_id=f"{name}-{number}",
                version=number,
                spec=spec,
                weights_bytes=weights,
                format=functions.ARTEFACT_FORMAT_PYTHON,
            )
        )
        for node_id in nodes:
            self.set_ready(name, node_id)
        return function

    def set_ready(self, name: str, node_id: str, version_id: str = "") -> None:
        function = self.functions[name]
        function.instances.append((version_id or function.versions[-1].version_id, node_id))
        function.state, function.reason = functions.FUNCTION_STATE_READY, ""

    async def set_state(self, name: str, state: int, reason: str = "") -> None:
        """Puts a function without instances into a state, and publishes it."""
        function = self.functions[name]
        function.state, function.reason = state, reason
        function.instances.clear()
        await self.changed()

    async def changed(self) -> None:
        """The next generation of the table, published."""
        self.generation += 1
        if self.bus is not None:
            await self.bus.publish(subjects.ROUTING, self.table().SerializeToString())

    async def start_instance(self, name: str, version_id: str) -> None:
        """A wake-up that succeeds: an instance of the version is ready on the first node."""
        await self.set_state(name, functions.FUNCTION_STATE_WAKING)
        self.set_ready(name, next(iter(self.nodes)), version_id)
        await self.changed()

    def table(self) -> cluster.RoutingTable:
        table = cluster.RoutingTable(generation=self.generation)
        for function in self.functions.values():
            route = table.functions.add(
                name=function.name, state=functions.FunctionState.Name(function.state), reason=function.reason,
                versions=function.versions, active_version_id=function.active.version_id, traffic=function.traffic,
                tenant=function.tenant,
            )  # fmt: skip
            for version_id, (standing, reason) in function.version_states.items():
                route.version_states.add(
                    version_id=version_id, state=functions.FunctionState.Name(standing), reason=reason
                )
            for number, (version_id, node_id) in enumerate(function.instances):
                route.instances.add(instance_id=f"{version_id}-i{number}", version_id=version_id, node_id=node_id)
        for node_id, double in self.nodes.items():
            row = table.nodes.add(
                node_id=node_id,
                router_address=double.described.address,
                link_address=double.served.address,
                queued_requests=self.queued.get(node_id, 0),
            )
            for (version_id, where), state in self.residency.items():
                if where == node_id:
                    row.residency.add(
                        version_id=version_id, node_id=node_id, state=state, tapes=self.tapes.get((version_id, where))
                    )
        return table

    # ---- ClusterService -------------------------------------------------------------------------------

    async def GetRoutingTable(self, request: Any, context: Any) -> cluster.GetRoutingTableResponse:
        self.fetches += 1
        return cluster.GetRoutingTableResponse(table=self.table())

    async def CreateVersion(self, request: cluster.CreateVersionRequest, context: Any) -> cluster.CreateVersionResponse:
        known = self.functions.get(request.spec.name)
        for version in known.versions if known else ():
            if self.deployments.get(request.deployment_id) == version.version_id:
                return cluster.CreateVersionResponse(version=version)
        function = self.add_function(request.spec.name)
        version = function.versions[-1]
        self.deployments[request.deployment_id] = version.version_id
        if known and request.without_traffic:
            function.traffic = function.traffic or [functions.TrafficShare(version=version.version - 1, percent=100)]
        else:
            function.traffic = []
        version.spec.CopyFrom(request.spec)
        version.artefact_digest = request.artefact_digest
        await self.changed()
        return cluster.CreateVersionResponse(version=version)

    async def SetTraffic(self, request: cluster.SetTrafficRequest, context: Any) -> cluster.SetTrafficResponse:
        function = self._function(request.name)
        function.previous, function.traffic = function.traffic, list(request.shares)
        await self.changed()
        return cluster.SetTrafficResponse(function=self._summary(function))

    async def RollBack(self, request: cluster.RollBackRequest, context: Any) -> cluster.RollBackResponse:
        function = self._function(request.name)
        function.traffic = function.previous
        await self.changed()
        return cluster.RollBackResponse(function=self._summary(function))

    def _function(self, name: str) -> Function:
        if name not in self.functions:
            raise NotFound("FUNCTION_NOT_FOUND", f"there is no function '{name}'", function=name)
        return self.functions[name]

    def _summary(self, function: Function) -> functions.FunctionSummary:
        return functions.FunctionSummary(
            name=function.name, state=functions.FunctionState.Name(function.state),
            active_version=function.active, ready_instances=len(function.instances), traffic=function.traffic,
            tenant=function.tenant,
        )  # fmt: skip

    async def GetFunction(self, request: cluster.GetFunctionRequest, context: Any) -> cluster.GetFunctionResponse:
        function = self._function(request.name)
        instances = [
            cluster.Instance(
                instance_id=f"{v}-i", version_id=v, function=function.name, node_id=n,
                state=cluster.INSTANCE_STATE_READY,
            )
            for v, n in function.instances
        ]  # fmt: skip
        return cluster.GetFunctionResponse(
            function=self._summary(function), versions=function.versions, instances=instances,
            events=[functions.Event(kind="function.deployed", subject=function.name)] * 30,
        )  # fmt: skip

    async def ListFunctions(self, request: Any, context: Any) -> cluster.ListFunctionsResponse:
        return cluster.ListFunctionsResponse(functions=[self._summary(f) for f in self.functions.values()])

    async def GetUsage(self, request: cluster.GetUsageRequest, context: Any) -> cluster.GetUsageResponse:
        """A row, of whom it was asked for."""
        return cluster.GetUsageResponse(
            rows=[functions.UsageRow(tenant=request.tenant or "everybody", usage=functions.UsageSummary(requests=1))]
        )

    async def DeleteFunction(
        self, request: cluster.DeleteFunctionRequest, context: Any
    ) -> cluster.DeleteFunctionResponse:
        del self.functions[self._function(request.name).name]
        await self.changed()
        return cluster.DeleteFunctionResponse()

    async def ListNodes(self, request: Any, context: Any) -> cluster.ListNodesResponse:
        return cluster.ListNodesResponse(
            nodes=[cluster.Node(node_id=node_id, state=cluster.NODE_STATE_READY) for node_id in self.nodes]
        )

    # ---- ScalingService -------------------------------------------------------------------------------

    async def WakeFunction(self, request: scaling.WakeFunctionRequest, context: Any) -> scaling.WakeFunctionResponse:
        function = self._function(request.function)
        self.wakes.append((request.function, request.version_id))
        await self.on_wake(request.function, request.version_id or function.versions[-1].version_id)
        return scaling.WakeFunctionResponse(started=True)

    async def SleepFunction(self, request: scaling.SleepFunctionRequest, context: Any) -> scaling.SleepFunctionResponse:
        stopped = len(self._function(request.function).instances)
        await self.set_state(request.function, functions.FUNCTION_STATE_SLEEPING)
        return scaling.SleepFunctionResponse(stopped=stopped)


class RepositoryDouble(repository.RepositoryServiceServicer):
    """Blobs in memory, checked against their digests. `derived` is the signature read off every artefact."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.derived = functions.Signature()
        self.format = functions.ARTEFACT_FORMAT_PYTHON
        self.commit_error: RouseError | None = None
        self.before_chunk: Callable[[], Awaitable[object]] | None = None
        self.chunks = 0

    async def FindMissingBlobs(
        self, request: repository.FindMissingBlobsRequest, context: Any
    ) -> repository.FindMissingBlobsResponse:
        return repository.FindMissingBlobsResponse(
            missing_digests=[digest for digest in request.digests if digest not in self.blobs]
        )

    async def PutBlob(
        self, parts: AsyncIterator[repository.PutBlobRequest], context: Any
    ) -> repository.PutBlobResponse:
        header = (await anext(parts)).header
        data = bytearray()
        async for part in parts:
            if self.before_chunk is not None:
                await self.before_chunk()
            self.chunks += 1
            data += part.chunk
            if len(data) > header.size_bytes:
                raise InvalidArgument("UPLOAD_TOO_LONG", f"blob {header.digest} has more bytes than its header says")
        if len(data) < header.size_bytes:
            raise InvalidArgument("UPLOAD_TRUNCATED", f"blob {header.digest} ends early")
        if hashlib.sha256(data).hexdigest() != header.digest:
            raise InvalidArgument("HASH_MISMATCH", f"blob {header.digest} has another hash")
        self.blobs[header.digest] = bytes(data)
        return repository.PutBlobResponse(received_bytes=len(data))

    async def CommitArtefact(
        self, request: repository.CommitArtefactRequest, context: Any
    ) -> repository.CommitArtefactResponse:
        if self.commit_error is not None:
            raise self.commit_error
        missing = [file.digest for file in request.files if file.digest not in self.blobs]
        if missing:
            raise FailedPrecondition("BLOB_MISSING", f"blob {missing[0]} is not there")
        digest = hashlib.sha256(b"".join(file.SerializeToString() for file in request.files)).hexdigest()
        artefact = repository.Artefact(digest=digest, format=self.format, signature=self.derived)
        return repository.CommitArtefactResponse(artefact=artefact)
