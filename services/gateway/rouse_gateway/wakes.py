"""Waking functions: one wake-up a version at a time, however many requests wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from rouse_common.clock import Clock
from rouse_common.errors import DeadlineExceeded, FailedPrecondition, NotFound, RouseError, Unavailable
from rouse_contracts import functions
from rouse_gateway import metrics
from rouse_gateway.state import Routes, Version, state_name

LOG = logging.getLogger(__name__)


class Waker(Protocol):
    """What asks for an instance (adapters.control.Scaler)."""

    async def wake(self, function: str, version_id: str) -> bool: ...


@dataclass(frozen=True)
class WakeSettings:
    """Args:
    attempts: calls to the scaler that may fail in a row before a wake-up is given up.
    first_backoff_s, max_backoff_s: pause after the first such failure, doubled up to the longest.
    repeat_s: without news for so long the scaler is asked again.
    """

    attempts: int = 8
    first_backoff_s: float = 0.1
    max_backoff_s: float = 2.0
    repeat_s: float = 10.0


@dataclass
class _Flight:
    """A wake-up under way and who waits for it."""

    task: asyncio.Task[None]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    error: RouseError | None = None
    waiters: int = 0


class Wakes:
    """Single flight of wake-ups.

    Args:
        tasks: where the wake-ups run.
        routes: the routing table, which shows when an instance is ready.
        refresh: fetches the routing table now. Raises RouseError.
        waker: the scaler.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        routes: Routes,
        refresh: Callable[[], Awaitable[None]],
        waker: Waker,
        clock: Clock,
        settings: WakeSettings | None = None,
    ) -> None:
        self._tasks = tasks
        self._routes = routes
        self._refresh = refresh
        self._waker = waker
        self._clock = clock
        self._settings = settings or WakeSettings()
        self._flights: dict[str, _Flight] = {}

    async def wait(self, version: Version, timeout_s: float) -> None:
        """Wakes a version, or joins the wake-up under way, and returns when an instance is ready.

        Raises DeadlineExceeded after `timeout_s`; FailedPrecondition LOAD_FAILED with the reason; NotFound
        where the function was deleted meanwhile; Unavailable where it could not be asked for. A wake-up
        that nobody waits for any more is given up; what the scaler has started goes on.
        """
        flight = self._flights.get(version.version_id)
        if flight is None:
            flight = self._flights[version.version_id] = _Flight(
                self._tasks.create_task(self._fly(version), name=f"wake {version.function}")
            )
        flight.waiters += 1
        try:
            async with asyncio.timeout(timeout_s):
                await flight.ended.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                "DEADLINE_EXCEEDED",
                f"function '{version.function}' was not ready when the deadline came, after {timeout_s:.3g} s: "
                f"{self._standing(version)}; give it a longer deadline or keep an instance (min_instances)",
                function=version.function,
            ) from None
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.ended.is_set():
                self._flights.pop(version.version_id, None)
                flight.task.cancel()
        if flight.error is not None:
            # Of its own for every waiter: a traceback belongs to one request.
            error = flight.error
            raise type(error)(error.reason, error.message, retry_after_s=error.retry_after_s, **error.metadata)

    def _standing(self, version: Version) -> str:
        found = self._found(version)
        if found is None:
            return "it is not in the routing table"
        return state_name(found.state) + (f" ({found.reason})" if found.reason else "")

    async def _fly(self, version: Version) -> None:
        """One wake-up from the request to the scaler until an instance is ready or surely is not coming."""
        flight = self._flights[version.version_id]
        started = self._clock.monotonic()
        LOG.info("waking function=%s version=%s", version.function, version.number)
        try:
            await self._until_ready(version)
            took_s = self._clock.monotonic() - started
            metrics.COLD_STARTS.labels(version.function).observe(took_s)
            LOG.info("woken function=%s version=%s took_ms=%.1f", version.function, version.number, took_s * 1000)
        except RouseError as error:
            flight.error = error
            LOG.warning("not woken function=%s version=%s reason=%s", version.function, version.number, error)
        finally:
            # A later request starts a wake-up of its own, also after a failure.
            if self._flights.get(version.version_id) is flight:
                del self._flights[version.version_id]
            flight.ended.set()

    async def _until_ready(self, version: Version) -> None:
        ready = False
        while not ready:
            await self._ask(version)
            # The table as it is after the scaler's answer: a failure that it shows is not an older one's.
            await self._retried(self._refresh, f"fetching the routing table for function '{version.function}'")
            ready = await self._watch(version)

    async def _watch(self, version: Version) -> bool:
        """Follows the table until an instance is ready; False where it is time to ask the scaler again."""
        asked = self._clock.monotonic()
        while not self._settled(version):
            # Asleep again: what was started has ended already. Otherwise it is on its way.
            found = self._found(version)
            asleep = found is not None and found.state == functions.FUNCTION_STATE_SLEEPING
            limit_s = self._settings.max_backoff_s if asleep else self._settings.repeat_s
            left_s = asked + limit_s - self._clock.monotonic()
            if left_s <= 0:
                return False
            await self._routes.change(left_s)
        return True

    def _found(self, version: Version) -> Version | None:
        """The version as the table has it now."""
        route = self._routes.table.functions.get(version.function)
        found = None if route is None else route.versions.get(version.number)
        return found if found is not None and found.version_id == version.version_id else None

    def _settled(self, version: Version) -> bool:
        """Whether an instance is ready; raises where none is coming."""
        found = self._found(version)
        if found is None:
            raise NotFound(
                "FUNCTION_NOT_FOUND",
                f"Request for unknown model: '{version.function}' is not found; it was deleted while it was woken",
                function=version.function,
            )
        if found.candidates:
            return True
        if found.state == functions.FUNCTION_STATE_FAILED:
            raise FailedPrecondition(
                "LOAD_FAILED",
                f"version {version.number} of function '{version.function}' could not be started: "
                f"{found.reason or 'no reason was given'}; `rouse logs {version.function}` has more",
                function=version.function,
                version=version.number,
            )
        if found.state == functions.FUNCTION_STATE_DELETING:
            raise FailedPrecondition(
                "FUNCTION_DELETING", f"function '{version.function}' is being deleted", function=version.function
            )
        return False

    async def _ask(self, version: Version) -> None:
        version_id = "" if version.active else version.version_id

        async def ask() -> None:
            await self._waker.wake(version.function, version_id)

        await self._retried(ask, f"waking function '{version.function}'")

    async def _retried(self, action: Callable[[], Awaitable[None]], what: str) -> None:
        """Repeats what only failed because a neighbour is away; both actions may be repeated without harm."""
        pause_s = self._settings.first_backoff_s
        for attempt in range(1, self._settings.attempts + 1):
            try:
                await action()
                return
            except (Unavailable, DeadlineExceeded) as error:
                if attempt == self._settings.attempts:
                    raise Unavailable(
                        error.reason if error.reason != error.code.name else "CONTROL_PLANE_AWAY",
                        f"{what} failed {attempt} times: {error.message}",
                        retry_after_s=self._settings.max_backoff_s,
                        **error.metadata,
                    ) from None
                LOG.debug("%s failed, trying again in %.2f s: %s", what, pause_s, error)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._settings.max_backoff_s)
