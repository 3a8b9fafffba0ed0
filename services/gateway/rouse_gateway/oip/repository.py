"""The model repository extension: which models there are, and loading and unloading them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rouse_common.clock import Clock
from rouse_common.errors import Unimplemented
from rouse_contracts import functions, inference
from rouse_gateway.access.caller import current
from rouse_gateway.access.view import check_owner
from rouse_gateway.adapters.control import Scaler
from rouse_gateway.asked import Serves
from rouse_gateway.feed import RoutingFeed
from rouse_gateway.state import Route, Routes, Version

READY, LOADING, UNLOADING, UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"
SLEEPS = "unloaded: the next request wakes it"
UNLOAD_DEPENDENTS = "unload_dependents"

ModelIndex = inference.RepositoryIndexResponse.ModelIndex


class ModelRepository:
    """Answers for the models of the mesh, which has one repository."""

    def __init__(self, routes: Routes, feed: RoutingFeed, dispatcher: Serves, scaler: Scaler, clock: Clock) -> None:
        self._routes = routes
        self._feed = feed
        self._dispatcher = dispatcher
        self._scaler = scaler
        self._clock = clock

    def index(self, ready_only: bool) -> inference.RepositoryIndexResponse:
        """Every version of every model with its state, or only those with a ready instance, in the order of
        their names. Raises Unavailable before there is a routing table."""
        table = self._routes.loaded_table()
        rows = []
        for name in sorted(table.functions):
            route = table.functions[name]
            for number in sorted((key for key in route.versions if key), key=int):
                state, reason = state_of(route, route.versions[number])
                if state == READY or not ready_only:
                    rows.append(ModelIndex(name=name, version=number, state=state, reason=reason))
        return inference.RepositoryIndexResponse(models=rows)

    async def load(self, name: str, parameters: Mapping[str, Any], timeout_s: float) -> None:
        """Wakes a model and returns when it has a ready instance. Raises as a request that wakes it does."""
        _refuse(name, parameters, ())
        await self._dispatcher.wake(name, "", timeout_s)

    async def unload(self, name: str, parameters: Mapping[str, Any], timeout_s: float) -> None:
        """Has a model's instances stopped, above the number that it always keeps, and returns when they are.
        Raises NotFound, DeadlineExceeded, and what scaler answers."""
        _refuse(name, parameters, (UNLOAD_DEPENDENTS,))
        deadline = self._clock.monotonic() + timeout_s
        route = self._routes.loaded_table().route(name)
        check_owner(current(), name, route.tenant)
        before = route.ready_instances
        stopped = await self._scaler.sleep(name, timeout_s)
        if not stopped:
            return
        await self._feed.until(
            lambda table: (
                name not in table.functions or table.functions[name].ready_instances <= max(0, before - stopped)
            ),
            f"{stopped} instances of model '{name}' have stopped",
            max(0.0, deadline - self._clock.monotonic()),
        )


def state_of(route: Route, version: Version) -> tuple[str, str]:
    """State and reason of a version in the extension's words."""
    if route.state == functions.FUNCTION_STATE_DELETING:
        return UNLOADING, route.reason
    if version.candidates:
        return READY, ""
    if route.state == functions.FUNCTION_STATE_FAILED:
        return UNAVAILABLE, route.reason
    if route.state == functions.FUNCTION_STATE_WAKING and version.active:
        return LOADING, route.reason
    return UNAVAILABLE, SLEEPS


def _refuse(name: str, parameters: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for parameter in parameters:
        if parameter not in known:
            raise Unimplemented(
                "UNSUPPORTED_PARAMETER",
                f"parameter '{parameter[:80]}' for model '{name}': a model is not changed while it is loaded; deploy "
                "another version of it instead",
                function=name,
                parameter=parameter[:80],
            )
