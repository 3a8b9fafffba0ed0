"""In-process doubles of cluster-manager and of a node's coordinator, as a scaler sees them: real gRPC servers.

The cluster double keeps functions and instances in memory and refuses what the contract refuses; the
coordinator double starts instances at once, or when the test says so.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc

from rouse_common.clock import SystemClock
from rouse_common.errors import NotFound, ResourceExhausted, RouseError, Unavailable
from rouse_contracts import cluster, coordination, functions
from rouse_testkit.served import Served

State = cluster.InstanceState
PENDING, STARTING, READY = State.INSTANCE_STATE_PENDING, State.INSTANCE_STATE_STARTING, State.INSTANCE_STATE_READY
STOPPING, ENDED, FAILED = State.INSTANCE_STATE_STOPPING, State.INSTANCE_STATE_ENDED, State.INSTANCE_STATE_FAILED
SERVING = (PENDING, STARTING, READY)
TERMINAL = (ENDED, FAILED, State.INSTANCE_STATE_LOST)


class ClusterDouble(Served, cluster.ClusterServiceServicer):
    """cluster-manager with its state in memory. `changed` is notified of every change."""

    def __init__(self) -> None:
        super().__init__(cluster.add_ClusterServiceServicer_to_server, cluster.DESCRIPTOR)
        self.functions: dict[str, functions.FunctionVersion] = {}
        self.versions: dict[str, functions.FunctionVersion] = {}
        self.instances: dict[str, cluster.Instance] = {}
        self.nodes: dict[str, cluster.Node] = {}
        # Percentages by version, of functions whose active version does not have all.
        self.traffic: dict[str, dict[int, int]] = {}
        self.history: list[tuple[str, str]] = []
        self.calls: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        # Raised by the next call of CreateInstance.
        self.refusal: RouseError | None = None
        self.changed = asyncio.Condition()
        # CreateInstance waits for it.
        self.answers = asyncio.Event()
        self.answers.set()
        self._numbers = itertools.count(1)
        self._clock = SystemClock()

    def add_node(self, node_id: str, coordinator_address: str) -> None:
        self.nodes[node_id] = cluster.Node(
            node_id=node_id, coordinator_address=coordinator_address, state=cluster.NODE_STATE_READY
        )

    def deploy(self, name: str, *, least: int = 0, most: int = 1, idle_s: float = 300.0) -> functions.FunctionVersion:
        """A new active version of a function."""
        number = sum(version.spec.name == name for version in self.versions.values()) + 1
        version = functions.FunctionVersion(version_id=f"{name}-v{number}", version=number)
        version.spec.name = name
        version.spec.scaling.min_instances, version.spec.scaling.max_instances = least, most
        version.spec.scaling.idle_timeout.FromNanoseconds(int(idle_s * 1e9))
        self.functions[name] = self.versions[version.version_id] = version
        return version

    def states(self, name: str) -> Counter[str]:
        """How many instances of a function are in which state."""
        found = [x for x in self.instances.values() if x.function == name]
        return Counter(State.Name(x.state).removeprefix("INSTANCE_STATE_") for x in found)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Waits until a change here makes the condition true. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(condition)

    async def put(self, version_id: str, state: State, *, age_s: float = 0.0, node_id: str = "n0") -> str:
        """An instance in a state, for `age_s` seconds already; its id."""
        instance_id = f"i{next(self._numbers)}"
        instance = cluster.Instance(
            instance_id=instance_id,
            version_id=version_id,
            function=self.versions[version_id].spec.name,
            node_id=node_id,
            state=state,
        )
        instance.since.FromNanoseconds(int((self._clock.now() - age_s) * 1e9))
        async with self.changed:
            self.instances[instance_id] = instance
            self.history.append((instance_id, State.Name(state).removeprefix("INSTANCE_STATE_")))
            count = sum(x.version_id == version_id and x.state in SERVING for x in self.instances.values())
            self.most[version_id] = max(self.most[version_id], count)
            self.changed.notify_all()
        return instance_id

    async def move(self, instance_id: str, state: State, reason: str = "") -> None:
        """Moves an instance on; terminal states stay."""
        async with self.changed:
            instance = self.instances.get(instance_id)
            if instance is None:
                raise NotFound("INSTANCE_NOT_FOUND", f"there is no instance {instance_id}")
            if instance.state in TERMINAL or (instance.state == STOPPING and state not in TERMINAL):
                return
            instance.state, instance.reason = state, reason
            instance.since.FromNanoseconds(int(self._clock.now() * 1e9))
            self.history.append((instance_id, State.Name(state).removeprefix("INSTANCE_STATE_")))
            self.changed.notify_all()

    async def _count(self, method: str) -> None:
        async with self.changed:
            self.calls[method] += 1
            self.changed.notify_all()

    def _summary(self, name: str) -> functions.FunctionSummary:
        active = self.functions[name]
        mine = [x for x in self.instances.values() if x.version_id == active.version_id]
        state = functions.FUNCTION_STATE_SLEEPING
        if any(x.state == READY for x in mine):
            state = functions.FUNCTION_STATE_READY
        elif any(x.state in SERVING for x in mine):
            state = functions.FUNCTION_STATE_WAKING
        elif mine and mine[-1].state == FAILED:
            state = functions.FUNCTION_STATE_FAILED
        traffic = [functions.TrafficShare(version=v, percent=p) for v, p in self.traffic.get(name, {}).items()]
        return functions.FunctionSummary(name=name, state=state, active_version=active, traffic=traffic)

    async def ListFunctions(self, request: Any, context: grpc.aio.ServicerContext) -> cluster.ListFunctionsResponse:
        await self._count("ListFunctions")
        beside = [
            version
            for version in self.versions.values()
            if version.version in self.traffic.get(version.spec.name, {})
            and version != self.functions[version.spec.name]
        ]
        summaries = [self._summary(name) for name in sorted(self.functions)]
        return cluster.ListFunctionsResponse(functions=summaries, versions=beside)

    async def ListInstances(self, request: Any, context: grpc.aio.ServicerContext) -> cluster.ListInstancesResponse:
        live = [x for x in self.instances.values() if x.state not in TERMINAL]
        return cluster.ListInstancesResponse(instances=live)

    async def ListNodes(self, request: Any, context: grpc.aio.ServicerContext) -> cluster.ListNodesResponse:
        return cluster.ListNodesResponse(nodes=self.nodes.values())

    async def GetFunction(
        self, request: cluster.GetFunctionRequest, context: grpc.aio.ServicerContext
    ) -> cluster.GetFunctionResponse:
        await self._count("GetFunction")
        if request.name not in self.functions:
            raise NotFound("FUNCTION_NOT_FOUND", f"there is no function '{request.name}'")
        return cluster.GetFunctionResponse(
            function=self._summary(request.name),
            versions=[x for x in self.versions.values() if x.spec.name == request.name],
            instances=[x for x in self.instances.values() if x.function == request.name],
        )

    async def CreateInstance(
        self, request: cluster.CreateInstanceRequest, context: grpc.aio.ServicerContext
    ) -> cluster.CreateInstanceResponse:
        await self._count("CreateInstance")
        await self.answers.wait()
        if self.refusal is not None:
            raise self.refusal
        version = self.versions[request.version_id]
        live = sum(x.version_id == request.version_id and x.state in SERVING for x in self.instances.values())
        if live >= version.spec.scaling.max_instances:
            raise ResourceExhausted("INSTANCE_LIMIT", f"{live} instances are the limit")
        if not self.nodes:
            raise Unavailable("NO_NODE", "there is no node")
        failures = Counter(x.node_id for x in self.instances.values() if x.state == FAILED)
        node = min(self.nodes.values(), key=lambda node: (failures[node.node_id], node.node_id))
        instance_id = await self.put(request.version_id, PENDING, node_id=node.node_id)
        return cluster.CreateInstanceResponse(
            instance=self.instances[instance_id], version=version, coordinator_address=node.coordinator_address
        )

    async def ReportInstance(
        self, request: cluster.ReportInstanceRequest, context: grpc.aio.ServicerContext
    ) -> cluster.ReportInstanceResponse:
        await self.move(request.instance_id, request.state, request.reason)
        return cluster.ReportInstanceResponse()


class CoordinatorDouble(Served, coordination.CoordinationServiceServicer):
    """A node's coordinator. `loads` is waited for before an instance is READY."""

    def __init__(self, control: ClusterDouble) -> None:
        super().__init__(coordination.add_CoordinationServiceServicer_to_server, coordination.DESCRIPTOR)
        self._control = control
        self.loads = asyncio.Event()
        self.loads.set()
        self.stops = asyncio.Event()
        self.stops.set()
        self.fails = False
        self.started: Counter[str] = Counter()
        self.stopped: list[coordination.StopInstanceRequest] = []
        self.staged: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def StartInstance(
        self, request: coordination.StartInstanceRequest, context: grpc.aio.ServicerContext
    ) -> coordination.StartInstanceResponse:
        self.started[request.instance_id] += 1
        if self.started[request.instance_id] == 1:
            task = asyncio.create_task(self._load(request.instance_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return coordination.StartInstanceResponse()

    async def _load(self, instance_id: str) -> None:
        await self._control.move(instance_id, STARTING)
        await self.loads.wait()
        await self._control.move(instance_id, FAILED if self.fails else READY, "it raised" if self.fails else "")

    async def StageVersion(
        self, request: coordination.StageVersionRequest, context: grpc.aio.ServicerContext
    ) -> coordination.StageVersionResponse:
        async with self._control.changed:
            self.staged[request.version.version_id] += 1
            self._control.changed.notify_all()
        return coordination.StageVersionResponse()

    async def StopInstance(
        self, request: coordination.StopInstanceRequest, context: grpc.aio.ServicerContext
    ) -> coordination.StopInstanceResponse:
        async with self._control.changed:
            self.stopped.append(request)
            self._control.changed.notify_all()
        await self.stops.wait()
        if self.started[request.instance_id]:
            await self._control.move(request.instance_id, ENDED, request.reason)
        return coordination.StopInstanceResponse()
