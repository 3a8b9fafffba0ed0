"""What stands before the dispatcher: whose request it is, what its tenant may use, whether it came before."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from rouse_common import telemetry
from rouse_common.errors import NotFound
from rouse_gateway.access.caller import Caller, current
from rouse_gateway.access.quotas import Quotas
from rouse_gateway.access.view import check_owner, sees
from rouse_gateway.asked import Answer, Call, Serves
from rouse_gateway.dispatch import Dispatcher
from rouse_gateway.repetitions import Repetitions
from rouse_gateway.state import Route, Routes


class FrontDoor(Serves):
    """Serves inferences of the caller of the running task; otherwise as `Dispatcher`.

    Args:
        routes: all of them.
    """

    def __init__(self, routes: Routes, dispatcher: Dispatcher, quotas: Quotas, repetitions: Repetitions) -> None:
        self._routes = routes
        self._dispatcher = dispatcher
        self._quotas = quotas
        self._repetitions = repetitions

    async def infer(self, call: Call) -> Answer:
        """Serves one inference. Raises, beside what Dispatcher.infer does, ResourceExhausted QUOTA_EXCEEDED |
        TOO_MANY_REQUESTS, and what Repetitions.infer does."""
        caller, route = current(), self._seen(call.function)
        call = _of(caller, call)
        if caller.rate is not None:
            await self._quotas.take(caller, call.function)
        if call.idempotency_key:
            return await self._repetitions.infer(call, lambda first: self._run(caller, route, first))
        return await self._run(caller, route, call)

    async def stream(self, call: Call) -> AsyncGenerator[Answer, None]:
        """Serves one inference with any number of answers. Raises as `infer` does; an idempotency key counts for
        nothing here: what was streamed is not kept."""
        caller, route = current(), self._seen(call.function)
        call = _of(caller, call)
        if caller.rate is not None:
            await self._quotas.take(caller, call.function)
        async with (
            self._quotas.holding(caller, route, call.function),
            aclosing(self._dispatcher.stream(call)) as answers,
        ):
            async for answer in answers:
                yield answer

    async def _run(self, caller: Caller, route: Route | None, call: Call) -> Answer:
        if not caller.max_concurrent and (route is None or not route.max_concurrent):
            return await self._dispatcher.infer(call)
        async with self._quotas.holding(caller, route, call.function):
            return await self._dispatcher.infer(call)

    async def wake(self, function: str, number: str, timeout_s: float) -> None:
        """As Dispatcher.wake, for those whose function it is. Raises PermissionDenied NOT_OWNER."""
        route = self._seen(function)
        if route is not None:
            check_owner(current(), route.name, route.tenant)
        await self._dispatcher.wake(function, number, timeout_s)

    def _seen(self, function: str) -> Route | None:
        """The function, which is there for the caller; None where there is none, which the dispatcher answers."""
        route = self._routes.table.functions.get(function)
        if route is None or sees(current(), route.tenant, route.shared):
            return route
        raise NotFound(
            "FUNCTION_NOT_FOUND", f"Request for unknown model: '{function}' is not found",
            function=function, trace_id=telemetry.current_trace_id(),
        )  # fmt: skip


def _of(caller: Caller, call: Call) -> Call:
    """The call, as one of the caller's tenant, whatever it said of itself."""
    if call.tenant == caller.tenant and call.tenant_weight == caller.weight:
        return call
    return call._replace(tenant=caller.tenant, tenant_weight=caller.weight)
