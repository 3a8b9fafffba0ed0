"""rouse.functions.v1.FunctionService: deploying, calling and watching functions."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import grpc

from rouse_common.errors import RouseError
from rouse_common.rpc import Channels, remaining_s
from rouse_contracts import cluster, functions
from rouse_gateway import deploy
from rouse_gateway.access.caller import current
from rouse_gateway.adapters import health
from rouse_gateway.adapters.control import ClusterManager, Repository, Scaler
from rouse_gateway.adapters.logs import Filter, Logs
from rouse_gateway.adapters.traces import Traces
from rouse_gateway.asked import Serves
from rouse_gateway.feed import RoutingFeed
from rouse_gateway.service import calls, convert
from rouse_gateway.service.raw import register_raw
from rouse_gateway.state import Routes, Table

LOG = logging.getLogger(__name__)

# For an upload without a deadline: blobs are up to many GiB.
UPLOAD_TIMEOUT_S = 3600.0
# Inspecting an artefact reads its files; a function may have to end what executes before it is deleted.
ITSELF = "gateway"
MANAGE_TIMEOUT_S = 120.0
STATUS_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Neighbours:
    """Who the service works with.

    Args:
        services: address by name of the services shown in the status.
        http_address: where this gateway serves HTTP, shown in the status; empty where it does not.
        stopping: set when the gateway stops; streams end then.
    """

    cluster: ClusterManager
    scaler: Scaler
    repository: Repository
    channels: Channels
    logs: Logs
    traces: Traces
    services: Mapping[str, str]
    http_address: str
    stopping: asyncio.Event


class FunctionService(functions.FunctionServiceServicer):
    """Handlers of the contract.

    Args:
        default_timeout_s: time for a request that sets no deadline.
        mesh_version: shown in the status.
    """

    def __init__(
        self,
        routes: Routes,
        feed: RoutingFeed,
        dispatcher: Serves,
        neighbours: Neighbours,
        default_timeout_s: float,
        mesh_version: str,
    ) -> None:
        self._routes = routes
        self._feed = feed
        self._dispatcher = dispatcher
        self._near = neighbours
        self._default_timeout_s = default_timeout_s
        self._mesh_version = mesh_version

    # ---- Functions ------------------------------------------------------------------------------------

    async def FindMissingBlobs(
        self, request: functions.FindMissingBlobsRequest, context: grpc.aio.ServicerContext
    ) -> functions.FindMissingBlobsResponse:
        missing = await self._near.repository.find_missing(request.digests, remaining_s(context, MANAGE_TIMEOUT_S))
        return functions.FindMissingBlobsResponse(missing_digests=missing)

    async def UploadBlob(
        self, parts: AsyncIterator[functions.UploadBlobRequest], context: grpc.aio.ServicerContext
    ) -> functions.UploadBlobResponse:
        received = await self._near.repository.put_blob(parts, remaining_s(context, UPLOAD_TIMEOUT_S))
        return functions.UploadBlobResponse(received_bytes=received)

    async def DeployFunction(
        self, request: functions.DeployFunctionRequest, context: grpc.aio.ServicerContext
    ) -> functions.DeployFunctionResponse:
        deploy.check_spec(request.spec)
        deploy.check_files(request.spec.name, len(request.files))
        artefact = await self._near.repository.commit(request.files, remaining_s(context, MANAGE_TIMEOUT_S))
        spec = deploy.merge(request.spec, artefact)
        create = cluster.CreateVersionRequest(
            spec=spec, artefact_digest=artefact.digest, without_traffic=request.without_traffic,
            deployment_id=request.deployment_id or uuid.uuid4().hex, only_if_changed=request.only_if_changed,
            tenant=current().tenant,
        )  # fmt: skip
        answer = await self._near.cluster.create_version(create, remaining_s(context, MANAGE_TIMEOUT_S))
        version, name, number = answer.version, spec.name, str(answer.version.version)

        def known(table: Table) -> bool:
            route = table.functions.get(name)
            return route is not None and number in route.versions

        # Whoever calls the function next, through this gateway, finds it.
        await self._feed.until(
            known,
            f"the gateway knows version {number} of function '{name}', which is deployed",
            remaining_s(context, MANAGE_TIMEOUT_S),
        )
        if not request.without_traffic:
            await self._feed.catch_up(f"the traffic of function '{name}'", remaining_s(context, MANAGE_TIMEOUT_S))
        LOG.info("deployed function=%s version=%s artefact=%s", name, number, artefact.digest[:12])
        return functions.DeployFunctionResponse(version=version, unchanged=answer.unchanged)

    async def SetTraffic(
        self, request: functions.SetTrafficRequest, context: grpc.aio.ServicerContext
    ) -> functions.SetTrafficResponse:
        timeout_s = remaining_s(context, self._default_timeout_s)
        await self._near.cluster.set_traffic(request.name, request.shares, timeout_s)
        return functions.SetTrafficResponse(function=await self._after_traffic(request.name, context))

    async def RollBack(
        self, request: functions.RollBackRequest, context: grpc.aio.ServicerContext
    ) -> functions.RollBackResponse:
        await self._near.cluster.roll_back(request.name, remaining_s(context, self._default_timeout_s))
        return functions.RollBackResponse(function=await self._after_traffic(request.name, context))

    async def _after_traffic(self, name: str, context: grpc.aio.ServicerContext) -> functions.FunctionSummary:
        """The function once requests that come through this gateway find its new traffic."""
        await self._feed.catch_up(f"the traffic of function '{name}'", remaining_s(context, self._default_timeout_s))
        summary = convert.route_summary(self._routes.table.route(name))
        LOG.info("traffic changed function=%s active=%d", name, summary.active_version.version)
        return summary

    async def WakeFunction(
        self, request: functions.WakeFunctionRequest, context: grpc.aio.ServicerContext
    ) -> functions.WakeFunctionResponse:
        await self._dispatcher.wake(request.name, request.version, remaining_s(context, self._default_timeout_s))
        return functions.WakeFunctionResponse(function=convert.route_summary(self._routes.table.route(request.name)))

    async def SleepFunction(
        self, request: functions.SleepFunctionRequest, context: grpc.aio.ServicerContext
    ) -> functions.SleepFunctionResponse:
        name, timeout_s = request.name, remaining_s(context, self._default_timeout_s)
        await self._near.scaler.sleep(name, timeout_s)
        await self._feed.catch_up(f"that function '{name}' sleeps", remaining_s(context, self._default_timeout_s))
        return functions.SleepFunctionResponse(function=convert.route_summary(self._routes.table.route(name)))

    async def DeleteFunction(
        self, request: functions.DeleteFunctionRequest, context: grpc.aio.ServicerContext
    ) -> functions.DeleteFunctionResponse:
        name = request.name
        await self._near.cluster.delete_function(name, remaining_s(context, MANAGE_TIMEOUT_S))
        await self._feed.until(
            lambda table: name not in table.functions,
            f"the gateway forgets function '{name}', which is deleted",
            remaining_s(context, MANAGE_TIMEOUT_S),
        )
        LOG.info("deleted function=%s", name)
        return functions.DeleteFunctionResponse()

    async def GetFunction(
        self, request: functions.GetFunctionRequest, context: grpc.aio.ServicerContext
    ) -> functions.GetFunctionResponse:
        answer = await self._near.cluster.get_function(request.name, remaining_s(context, self._default_timeout_s))
        return convert.function_details(answer)

    async def ListFunctions(
        self, request: functions.ListFunctionsRequest, context: grpc.aio.ServicerContext
    ) -> functions.ListFunctionsResponse:
        found = list(await self._near.cluster.list_functions(remaining_s(context, self._default_timeout_s)))
        found.sort(key=lambda summary: summary.name)
        return functions.ListFunctionsResponse(functions=found)

    async def GetUsage(
        self, request: functions.GetUsageRequest, context: grpc.aio.ServicerContext
    ) -> functions.GetUsageResponse:
        timeout_s = remaining_s(context, self._default_timeout_s)
        asked = cluster.GetUsageRequest(
            tenant=request.tenant, grouping=request.grouping, page_token=request.page_token,
            since=request.since if request.HasField("since") else None,
            until=request.until if request.HasField("until") else None,
        )  # fmt: skip
        answer = await self._near.cluster.usage(asked, timeout_s)
        return functions.GetUsageResponse(rows=answer.rows, next_page_token=answer.next_page_token)

    # ---- Calls ----------------------------------------------------------------------------------------

    async def Infer(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """One inference, serialised request to serialised response."""
        call, request_id = calls.read_call(data, remaining_s(context, self._default_timeout_s))
        return b"".join(calls.write_response(await self._dispatcher.infer(call), request_id))

    async def InferStream(self, data: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """One inference, serialised request to as many serialised responses as it has."""
        request = calls.read_streamed(data)
        call, request_id = calls.read_call(request, remaining_s(context, self._default_timeout_s))
        async with aclosing(self._dispatcher.stream(call)) as answers:
            async for answer in answers:
                yield calls.write_streamed(answer, request_id)

    # ---- Seeing what happens --------------------------------------------------------------------------

    async def ReadLogs(
        self, request: functions.ReadLogsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[functions.ReadLogsResponse]:
        wanted = Filter(request.function, request.service, request.trace_id.lower(), request.instance)
        async for lines in self._near.logs.read(wanted, request.tail, request.follow, self._near.stopping):
            yield functions.ReadLogsResponse(lines=lines)

    async def GetTrace(
        self, request: functions.GetTraceRequest, context: grpc.aio.ServicerContext
    ) -> functions.GetTraceResponse:
        spans = await self._near.traces.read(request.trace_id, remaining_s(context, self._default_timeout_s))
        return functions.GetTraceResponse(spans=spans)

    async def GetStatus(
        self, request: functions.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> functions.GetStatusResponse:
        """What can be said without cluster-manager is said without it; its own state tells that it is away."""
        timeout_s = min(STATUS_TIMEOUT_S, remaining_s(context, STATUS_TIMEOUT_S))
        others = {name: address for name, address in self._near.services.items() if name != ITSELF}
        states, nodes = await asyncio.gather(health.check_all(self._near.channels, others), self._nodes(timeout_s))
        serving = self._routes.loaded.is_set() and not self._near.stopping.is_set()
        # Asked over the network it would show what clients see, and another authority may have signed that.
        states[ITSELF] = "SERVING" if serving else "NOT_SERVING"
        return functions.GetStatusResponse(
            mesh_version=self._mesh_version,
            services=[
                functions.ServiceSummary(name=name, address=address, state=states[name])
                for name, address in self._near.services.items()
            ],
            nodes=nodes,
            functions=len(self._routes.table.functions),
            http_address=self._near.http_address,
        )

    async def _nodes(self, timeout_s: float) -> list[functions.NodeSummary]:
        try:
            found = await self._near.cluster.list_nodes(timeout_s)
        except RouseError as error:
            LOG.warning("the status goes without nodes: %s", error)
            return []
        instances = self._routes.table.instances
        return [convert.node_summary(node, instances.get(node.node_id, 0)) for node in found]


register = register_raw(functions.add_FunctionServiceServicer_to_server, {"Infer", "InferStream"})
