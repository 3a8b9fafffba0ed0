"""grpc.health.v1: Check and Watch. Every Watch ends with the server, after it has seen the last state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Health(health_pb2_grpc.HealthServicer):
    """The health of a server's services; "" is the server as a whole."""

    def __init__(self) -> None:
        self._states: dict[str, int] = {"": NOT_SERVING}
        self._changed = asyncio.Event()
        self._closed = False

    def set(self, services: Iterable[str], state: int) -> None:
        """Sets the state of services, and tells who watches."""
        self._states |= dict.fromkeys(services, state)
        self._wake()

    def close(self) -> None:
        """Ends every Watch, once it has sent the state as it is now."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        state = self._states.get(request.service)
        if state is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service '{request.service[:80]}' here")
        return health_pb2.HealthCheckResponse(status=state)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The state of a service now and at each change; SERVICE_UNKNOWN for one that is not here."""
        last = None
        while True:
            changed = self._changed
            state = self._states.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if state != last:
                last = state
                yield health_pb2.HealthCheckResponse(status=state)
            if self._closed:
                return
            await changed.wait()
