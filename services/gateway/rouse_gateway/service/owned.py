"""FunctionService for tenants: each sees its own functions and those that are shared, and changes its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeAlias

import grpc

from rouse_common.errors import NotFound, PermissionDenied
from rouse_contracts import functions
from rouse_gateway.access.caller import current
from rouse_gateway.access.view import check_owner, sees
from rouse_gateway.service.functions import MANAGE_TIMEOUT_S, FunctionService

Context: TypeAlias = grpc.aio.ServicerContext


class OwnedFunctions(FunctionService):
    """Checks whose a function is before FunctionService does what it is asked; administrators may do everything."""

    async def _check(self, name: str) -> None:
        """Raises NotFound FUNCTION_NOT_FOUND, PermissionDenied NOT_OWNER."""
        caller = current()
        if caller.sees_all:
            return
        # Asked of cluster-manager: the routing table here may not have heard of it yet, and it decides.
        answer = await self._near.cluster.get_function(name, MANAGE_TIMEOUT_S)
        _visible(answer.function)
        check_owner(caller, name, answer.function.tenant)

    async def DeleteFunction(
        self, request: functions.DeleteFunctionRequest, context: Context
    ) -> functions.DeleteFunctionResponse:
        await self._check(request.name)
        return await super().DeleteFunction(request, context)

    async def SetTraffic(self, request: functions.SetTrafficRequest, context: Context) -> functions.SetTrafficResponse:
        await self._check(request.name)
        return await super().SetTraffic(request, context)

    async def RollBack(self, request: functions.RollBackRequest, context: Context) -> functions.RollBackResponse:
        await self._check(request.name)
        return await super().RollBack(request, context)

    async def SleepFunction(
        self, request: functions.SleepFunctionRequest, context: Context
    ) -> functions.SleepFunctionResponse:
        await self._check(request.name)
        return await super().SleepFunction(request, context)

    async def GetFunction(
        self, request: functions.GetFunctionRequest, context: Context
    ) -> functions.GetFunctionResponse:
        answer = await super().GetFunction(request, context)
        _visible(answer.function)
        return answer

    async def ListFunctions(
        self, request: functions.ListFunctionsRequest, context: Context
    ) -> functions.ListFunctionsResponse:
        answer = await super().ListFunctions(request, context)
        return functions.ListFunctionsResponse(functions=[found for found in answer.functions if _is_seen(found)])

    async def GetUsage(self, request: functions.GetUsageRequest, context: Context) -> functions.GetUsageResponse:
        caller = current()
        if not caller.sees_all:
            if request.tenant and request.tenant != caller.tenant:
                raise PermissionDenied(
                    "NOT_OWNER", f"what tenant '{request.tenant}' used is not for tenant '{caller.tenant}' to see",
                    tenant=caller.tenant,
                )  # fmt: skip
            request.tenant = caller.tenant
        return await super().GetUsage(request, context)

    async def ReadLogs(
        self, request: functions.ReadLogsRequest, context: Context
    ) -> AsyncIterator[functions.ReadLogsResponse]:
        if not request.function and not current().sees_all:
            raise PermissionDenied(
                "ROLE_MISSING", "the lines of all services need the role ADMIN; name one of your functions"
            )
        if request.function:
            await self._check(request.function)
        async for lines in super().ReadLogs(request, context):
            yield lines

    async def GetTrace(self, request: functions.GetTraceRequest, context: Context) -> functions.GetTraceResponse:
        answer = await super().GetTrace(request, context)
        caller = current()
        if caller.sees_all:
            return answer
        routes = self._routes.table.functions
        named = {span.attributes["function"] for span in answer.spans if "function" in span.attributes}
        if not any(name in routes and caller.owns(routes[name].tenant) for name in named):
            raise NotFound(
                "TRACE_NOT_FOUND", f"there is no trace {request.trace_id} of a function of yours",
                trace_id=request.trace_id,
            )  # fmt: skip
        return answer

    async def _nodes(self, timeout_s: float) -> list[functions.NodeSummary]:
        """Nodes, with what is on their devices as far as it is the caller's to see."""
        nodes = await super()._nodes(timeout_s)
        if current().sees_all:
            return nodes
        seen = {
            version.version_id for route in self._routes.table.functions.values() for version in route.versions.values()
        }
        for node in nodes:
            for device in node.devices:
                kept = [resident for resident in device.residents if resident.version_id in seen]
                del device.residents[:]
                device.residents.extend(kept)
        return nodes


def _is_seen(function: functions.FunctionSummary) -> bool:
    return sees(current(), function.tenant, function.active_version.spec.shared)


def _visible(function: functions.FunctionSummary) -> None:
    if not _is_seen(function):
        raise NotFound(
            "FUNCTION_NOT_FOUND",
            f"there is no function '{function.name}'; `rouse functions` lists them",
            function=function.name,
        )
