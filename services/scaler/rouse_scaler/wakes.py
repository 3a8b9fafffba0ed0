"""Waking a function: an instance is there, or on its way, when this returns. On the path of cold requests."""

from __future__ import annotations

import asyncio

from rouse_common.clock import Clock
from rouse_common.errors import FailedPrecondition, NotFound, ResourceExhausted, RouseError, Unavailable
from rouse_contracts import cluster, functions
from rouse_scaler import metrics
from rouse_scaler.actions import Actions
from rouse_scaler.adapters.control import ControlPlane
from rouse_scaler.state import Registry

# Versions being woken at once; wake-ups last milliseconds.
MAX_FLIGHTS = 4096
ON_ITS_WAY = (cluster.INSTANCE_STATE_PENDING, cluster.INSTANCE_STATE_STARTING, cluster.INSTANCE_STATE_READY)
RETRY_S = 0.2


class Wakes:
    """Single flight by function and version: who comes while a wake-up is under way shares its outcome."""

    def __init__(
        self, control: ControlPlane, actions: Actions, registry: Registry, clock: Clock, tasks: asyncio.TaskGroup
    ) -> None:
        self._control, self._actions, self._registry = control, actions, registry
        self._clock, self._tasks = clock, tasks
        self._flights: dict[tuple[str, str], asyncio.Future[bool]] = {}

    async def wake(self, function: str, version_id: str) -> bool:
        """Makes sure of an instance of a version, "" being the active one; whether it was started for this.

        Raises NotFound FUNCTION_NOT_FOUND | VERSION_NOT_FOUND; FailedPrecondition MODEL_TOO_LARGE |
        FUNCTION_DELETING; Unavailable NO_NODE | START_FAILED | INSTANCE_STOPPING.
        """
        key = (function, version_id)
        flight = self._flights.get(key)
        if flight is not None:
            await asyncio.shield(flight)
            metrics.WAKES.labels("joined").inc()
            return False
        if len(self._flights) >= MAX_FLIGHTS:
            raise Unavailable("BUSY", f"{MAX_FLIGHTS} functions are being woken", retry_after_s=RETRY_S)
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        # In a task of its own: a caller that goes away must not take the others' wake-up with it.
        self._tasks.create_task(self._fly(key, flight))
        return await asyncio.shield(flight)

    async def _fly(self, key: tuple[str, str], flight: asyncio.Future[bool]) -> None:
        began = self._clock.monotonic()
        try:
            started = await self._ensure(*key)
            metrics.WAKES.labels("started" if started else "there").inc()
            flight.set_result(started)
        except RouseError as error:
            metrics.WAKES.labels(error.reason.lower()).inc()
            flight.set_exception(error)
            # Seen, even where every caller has gone.
            flight.exception()
        finally:
            del self._flights[key]
            if not flight.done():
                flight.cancel()
            metrics.WAKE_LATENCY.observe(self._clock.monotonic() - began)

    async def _ensure(self, function: str, version_id: str) -> bool:
        entry = self._registry.entry(function)
        async with entry.lock:
            described = await self._control.function(function)
            version_id = _version(described, version_id)
            for known in self._registry.of_function(function):
                if known is entry or known.version_id == version_id:
                    known.woken_at = self._clock.now()
            states = [x.state for x in described.instances if x.version_id == version_id]
            if any(state in ON_ITS_WAY for state in states):
                return False
            try:
                instance_id = await self._actions.start(function, version_id, "a request wakes it", "wake")
            except ResourceExhausted as error:
                if cluster.INSTANCE_STATE_STOPPING in states:
                    raise Unavailable(
                        "INSTANCE_STOPPING",
                        f"the last instance of function '{function}' is still being stopped; try again ({error})",
                        retry_after_s=RETRY_S,
                        function=function,
                    ) from None
                raise
            entry.started(instance_id, self._clock.monotonic())
            return True


def _version(described: cluster.GetFunctionResponse, version_id: str) -> str:
    """The version to wake. Raises NotFound, FailedPrecondition."""
    name = described.function.name
    if described.function.state == functions.FUNCTION_STATE_DELETING:
        raise FailedPrecondition("FUNCTION_DELETING", f"function '{name}' is being deleted", function=name)
    if not version_id:
        active: str = described.function.active_version.version_id
        return active
    if all(version.version_id != version_id for version in described.versions):
        raise NotFound(
            "VERSION_NOT_FOUND", f"function '{name}' has no version '{version_id}'", function=name, version=version_id
        )
    return version_id
