"""What tenants and functions may use at once and over time; see rouse_cache.limits for how it is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rouse_cache import Limits
from rouse_common.errors import ResourceExhausted
from rouse_gateway import metrics
from rouse_gateway.access.caller import Caller
from rouse_gateway.state import Route

# When a slot will be free nobody knows; a request takes about so long.
SLOT_RETRY_S = 0.25


class Quotas:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    async def take(self, caller: Caller, function: str) -> None:
        """Counts one request of a tenant. Raises ResourceExhausted QUOTA_EXCEEDED."""
        if caller.rate is None:
            return
        wait_s = await self._limits.take(caller.tenant, caller.rate)
        if wait_s:
            limit = f"{caller.rate.per_second:g} requests a second, {caller.rate.size:g} at once"
            raise _refusal("QUOTA_EXCEEDED", f"tenant:{caller.tenant}", limit, wait_s, caller, function)

    @asynccontextmanager
    async def holding(self, caller: Caller, route: Route | None, function: str) -> AsyncIterator[None]:
        """A request in flight. Raises ResourceExhausted TOO_MANY_REQUESTS."""
        taken: list[str] = []
        wanted = []
        if caller.max_concurrent:
            wanted.append((f"tenant:{caller.tenant}", caller.max_concurrent))
        if route is not None and route.max_concurrent:
            wanted.append((f"function:{route.name}", route.max_concurrent))
        try:
            for name, limit in wanted:
                if not await self._limits.hold(name, limit):
                    words = f"{limit} requests in flight"
                    raise _refusal("TOO_MANY_REQUESTS", name, words, SLOT_RETRY_S, caller, function)
                taken.append(name)
            yield
        finally:
            for name in taken:
                self._limits.release(name)


def _refusal(reason: str, subject: str, limit: str, wait_s: float, caller: Caller, function: str) -> ResourceExhausted:
    metrics.REFUSED_BY_LIMIT.labels(reason).inc()
    whose = subject.replace(":", " '", 1) + "'"
    error = ResourceExhausted(
        reason, f"{whose} may have {limit}, and has; wait, or ask for a higher limit",
        retry_after_s=wait_s, tenant=caller.tenant, function=function, limit=limit,
    )  # fmt: skip
    error.violations = ((subject, limit),)
    return error
