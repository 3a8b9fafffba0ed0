"""cluster-manager in the test's own process, with neighbours that are real gRPC servers under its control."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from rouse_cluster_manager.app import ClusterManager
from rouse_cluster_manager.config import ClusterManagerConfig
from rouse_common.errors import NotFound, Unavailable
from rouse_common.rpc import Channels, RpcServer, call
from rouse_contracts import cluster, coordination, device, functions, repository

MIB = 1 << 20
CALL_TIMEOUT_S = 20.0


def digest_of(name: str) -> str:
    """A digest that stands for an artefact of that name."""
    return hashlib.sha256(name.encode()).hexdigest()


def signature() -> functions.Signature:
    """One float tensor in, one out."""
    return functions.Signature(
        inputs=[functions.TensorSpec(name="x", datatype="FP32", shape=[-1])],
        outputs=[functions.TensorSpec(name="y", datatype="FP32", shape=[-1])],
    )


class Repository(repository.RepositoryServiceServicer):
    """Artefacts by digest; `deleted` in the order of deletion."""

    def __init__(self) -> None:
        self.artefacts: dict[str, repository.Artefact] = {}
        self.deleted: list[str] = []
        self.away = False

    def hold(self, name: str, weights_mib: float = 1.0) -> str:
        """Makes a Hugging Face artefact and returns its digest."""
        digest = digest_of(name)
        self.artefacts[digest] = repository.Artefact(
            digest=digest,
            format=functions.ARTEFACT_FORMAT_HUGGING_FACE,
            size_bytes=int(weights_mib * MIB) + 100,
            signature=signature(),
            layout=repository.WeightsLayout(image_bytes=int(weights_mib * MIB)),
            architecture="TestModel",
        )
        return digest

    async def GetArtefact(self, request: repository.GetArtefactRequest, context: Any) -> repository.GetArtefactResponse:
        self._check()
        if request.digest not in self.artefacts:
            raise NotFound("ARTEFACT_NOT_FOUND", f"no artefact {request.digest}")
        return repository.GetArtefactResponse(artefact=self.artefacts[request.digest])

    async def DeleteArtefact(
        self, request: repository.DeleteArtefactRequest, context: Any
    ) -> repository.DeleteArtefactResponse:
        self._check()
        self.artefacts.pop(request.digest, None)
        self.deleted.append(request.digest)
        return repository.DeleteArtefactResponse()

    def _check(self) -> None:
        if self.away:
            raise Unavailable("REPOSITORY_AWAY", "the test has sent it away")


class NodeServices(coordination.CoordinationServiceServicer, device.DeviceServiceServicer):
    """Coordinator and gpu-server of one node: remembers what it was told."""

    def __init__(self, node_id: str, address: str) -> None:
        self.node_id, self.address = node_id, address
        self.incarnation = f"{node_id}-1"
        self.devices = [cluster.DeviceInfo(name="gpu0", kind="host", capacity_bytes=100 * MIB)]
        self.report = cluster.NodeReport(host_capacity_bytes=1000 * MIB)
        self.held: set[str] = set()
        self.stopped: list[str] = []
        self.dropped: list[tuple[str, str]] = []
        self.away = False

    def node(self) -> cluster.Node:
        return cluster.Node(
            node_id=self.node_id,
            incarnation=self.incarnation,
            router_address=self.address,
            link_address=self.address,
            device_address=self.address,
            coordinator_address=self.address,
            devices=self.devices,
        )

    def hold(self, version: functions.FunctionVersion, state: str, device_name: str = "") -> None:
        """Puts a version into the node's reports."""
        self.report.residency.add(
            version_id=version.version_id, state=state, device=device_name, size_bytes=version.weights_bytes
        )

    async def StopInstance(
        self, request: coordination.StopInstanceRequest, context: Any
    ) -> coordination.StopInstanceResponse:
        self._check()
        self.held.discard(request.instance_id)
        self.stopped.append(request.instance_id)
        return coordination.StopInstanceResponse()

    async def DropVersion(self, request: device.DropVersionRequest, context: Any) -> device.DropVersionResponse:
        self._check()
        kept = [entry for entry in self.report.residency if entry.version_id != request.version_id]
        del self.report.residency[:]
        self.report.residency.extend(kept)
        self.dropped.append((request.version_id, request.artefact_digest))
        return device.DropVersionResponse()

    def _check(self) -> None:
        if self.away:
            raise Unavailable("NODE_AWAY", "the test has sent it away")


class ControlPlane:
    """A running cluster-manager and its neighbours."""

    def __init__(self, settings: Mapping[str, Any], channels: Channels) -> None:
        self.settings = dict(settings)
        self.repository = Repository()
        self.address = ""
        self._channels = channels
        self._servers: list[RpcServer] = []
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def serve_repository(self) -> None:
        server = RpcServer("127.0.0.1:0", max_message_bytes=MIB)
        server.add(repository.add_RepositoryServiceServicer_to_server, self.repository, repository.DESCRIPTOR)
        await server.start()
        self._servers.append(server)
        self.settings["model_repository"] = server.address

    async def start(self) -> None:
        """Starts cluster-manager and waits until it listens; see `serving`."""
        started: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def ready(address: str) -> None:
            started.set_result(address)

        self._stopping = asyncio.Event()
        config = ClusterManagerConfig(**self.settings)
        self._task = asyncio.create_task(ClusterManager(config).run(ready, self._stopping))
        either: set[asyncio.Future[Any]] = {started, self._task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            await self._task
        self.address = started.result()

    async def stop(self) -> None:
        """Stops it as a signal would, and raises what it failed with."""
        task, self._task = self._task, None
        if task is not None:
            self._stopping.set()
            await task

    async def node(self, node_id: str) -> NodeServices:
        """Starts a node's services; registering is the test's business."""
        server = RpcServer("127.0.0.1:0", max_message_bytes=MIB)
        services = NodeServices(node_id, "")
        server.add(coordination.add_CoordinationServiceServicer_to_server, services, coordination.DESCRIPTOR)
        server.add(device.add_DeviceServiceServicer_to_server, services, device.DESCRIPTOR)
        await server.start()
        self._servers.append(server)
        services.address = server.address
        return services

    async def call(self, method: str, request: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Calls cluster-manager. Raises the RouseError of its answer."""
        stub = cluster.ClusterServiceStub(self._channels.get(self.address))
        return await call(getattr(stub, method), request, timeout_s=timeout_s)

    async def serving(self) -> None:
        """Waits until it serves."""
        await self.until(self.nodes, Unavailable)

    async def until(self, action: Callable[[], Any], failure: type[Exception]) -> Any:
        """Repeats a call until it does not fail so any more, within CALL_TIMEOUT_S; returns its result."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while True:
                try:
                    return await action()
                except failure:
                    self._check()
                    await asyncio.sleep(0.02)

    async def becomes(self, action: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
        """Repeats a call until its result is as wanted, within CALL_TIMEOUT_S; returns it."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while not wanted(result := await action()):
                self._check()
                await asyncio.sleep(0.02)
            return result

    def _check(self) -> None:
        """Raises what cluster-manager failed with meanwhile."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def register(self, node: NodeServices) -> None:
        await self.call("RegisterNode", cluster.RegisterNodeRequest(node=node.node()))

    async def beat(self, node: NodeServices) -> list[str]:
        """One heartbeat; returns the instances that have to be stopped."""
        request = cluster.HeartbeatRequest(
            node_id=node.node_id, incarnation=node.incarnation, report=node.report, instance_ids=sorted(node.held)
        )
        return list((await self.call("Heartbeat", request)).stop_instance_ids)

    async def deploy(self, name: str, artefact: str = "", **spec: Any) -> functions.FunctionVersion:
        """A version of a function; its artefact is made if need be."""
        digest = digest_of(artefact or name)
        if digest not in self.repository.artefacts:
            self.repository.hold(artefact or name)
        request = cluster.CreateVersionRequest(spec=functions.FunctionSpec(name=name, **spec), artefact_digest=digest)
        version: functions.FunctionVersion = (await self.call("CreateVersion", request)).version
        return version

    async def place(self, version: functions.FunctionVersion) -> cluster.CreateInstanceResponse:
        request = cluster.CreateInstanceRequest(version_id=version.version_id, reason="the test wants it")
        placed: cluster.CreateInstanceResponse = await self.call("CreateInstance", request)
        return placed

    async def report(self, instance: cluster.Instance, state: str, reason: str = "as the test says") -> None:
        request = cluster.ReportInstanceRequest(
            instance_id=instance.instance_id, state=f"INSTANCE_STATE_{state}", reason=reason
        )
        await self.call("ReportInstance", request)

    async def run_instance(self, version: functions.FunctionVersion, node: NodeServices) -> cluster.Instance:
        """Places an instance and takes it to READY on the node that was chosen, which must be `node`."""
        instance: cluster.Instance = (await self.place(version)).instance
        assert instance.node_id == node.node_id
        node.held.add(instance.instance_id)
        await self.report(instance, "STARTING")
        await self.report(instance, "READY")
        return instance

    async def nodes(self) -> dict[str, cluster.Node]:
        response = await self.call("ListNodes", cluster.ListNodesRequest())
        return {node.node_id: node for node in response.nodes}

    async def function(self, name: str) -> cluster.GetFunctionResponse:
        found: cluster.GetFunctionResponse = await self.call("GetFunction", cluster.GetFunctionRequest(name=name))
        return found

    async def instances(self, *, ended: bool = False) -> dict[str, cluster.Instance]:
        request = cluster.ListInstancesRequest(include_ended=ended)
        response = await self.call("ListInstances", request)
        return {instance.instance_id: instance for instance in response.instances}

    async def table(self) -> cluster.RoutingTable:
        table: cluster.RoutingTable = (await self.call("GetRoutingTable", cluster.GetRoutingTableRequest())).table
        return table

    async def delete(self, name: str, timeout_s: float = CALL_TIMEOUT_S) -> None:
        await self.call("DeleteFunction", cluster.DeleteFunctionRequest(name=name), timeout_s)

    async def close(self) -> None:
        await self.stop()
        for server in self._servers:
            await server.stop(0)


@asynccontextmanager
async def control_plane(database: str, nats: str, **settings: Any) -> AsyncIterator[ControlPlane]:
    """A control plane that serves; `settings` are fields of ClusterManagerConfig."""
    channels = Channels(MIB)
    plane = ControlPlane({"database": database, "nats": nats, "drain_s": 1.0} | settings, channels)
    try:
        await plane.serve_repository()
        await plane.start()
        await plane.serving()
        yield plane
    finally:
        await plane.close()
        await channels.close()
