"""A gRPC server with what every service needs: traces, typed errors, metrics, health, reflection, drain."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from rouse_common import metrics, telemetry
from rouse_common.errors import DeadlineExceeded, Internal, RouseError
from rouse_common.rpc.options import server_options
from rouse_contracts.status import DETAILS_KEY, encode_details, shortened

LOG = logging.getLogger(__name__)
# A caller that is gone: its call is cancelled, or a stream's generator closed where it stands.
ENDED_BY_CALLER = (asyncio.CancelledError, GeneratorExit)
UNTRACED = ("/grpc.health.v1.Health/", "/grpc.reflection.")


def remaining_s(context: grpc.aio.ServicerContext, default_s: float) -> float:
    """Seconds left until the caller's deadline, or `default_s` where it set none."""
    left = context.time_remaining()
    return default_s if left is None else max(0.0, left)


class RpcServer:
    """A grpc.aio server. Not serving until `set_serving`; `stop` drains.

    Args:
        listen: host:port (port 0 takes a free one) or unix:PATH.
        max_message_bytes: largest message in either direction.
        max_concurrent: RPCs at work at once; further ones are refused with RESOURCE_EXHAUSTED.
    """

    def __init__(self, listen: str, *, max_message_bytes: int, max_concurrent: int = 10_000) -> None:
        self._server = grpc.aio.server(
            interceptors=[_Interceptor()],
            options=server_options(max_message_bytes),
            maximum_concurrent_rpcs=max_concurrent,
        )
        self._listen = listen
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._services: list[str] = []
        self._files: list[FileDescriptor] = []
        self.address = listen

    def add(self, register: Callable[[Any, grpc.aio.Server], None], servicer: object, contract: FileDescriptor) -> None:
        """Adds a servicer with its generated `add_…_to_server` and the contract's DESCRIPTOR."""
        register(servicer, self._server)
        bases = {base.__name__ for base in type(servicer).__mro__}
        self._services += [s.full_name for s in contract.services_by_name.values() if f"{s.name}Servicer" in bases]
        self._files.append(contract)

    async def start(self) -> None:
        """Binds and serves; sets `address`. Raises OSError where the address is taken."""
        pool = _merged_pool([*self._files, health_pb2.DESCRIPTOR, *_reflection_files()])
        names = [*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server, pool)
        try:
            port = self._server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._listen}; is another process using it?") from error
        if not self._listen.startswith("unix:"):
            self.address = f"{self._listen.rpartition(':')[0]}:{port}"
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Sets the health that `grpc.health.v1` answers, overall and for each service."""
        state = health_pb2.HealthCheckResponse
        await self._set_health(state.SERVING if serving else state.NOT_SERVING)

    async def _set_health(self, state: int) -> None:
        for name in ("", *self._services):
            await self._health.set(name, state)

    async def stop(self, drain_s: float) -> None:
        """Not ready, accept no more, wait up to `drain_s` for calls in flight, close."""
        await self.set_serving(False)
        await self._server.stop(drain_s)


def _reflection_files() -> list[FileDescriptor]:
    from grpc_reflection.v1alpha import reflection_pb2

    return [reflection_pb2.DESCRIPTOR]


def _merged_pool(files: Iterable[FileDescriptor]) -> descriptor_pool.DescriptorPool:
    """One pool for reflection over contracts that live in different pools (see contracts/generate.py)."""
    pool, seen = descriptor_pool.DescriptorPool(), set()

    def add(file: FileDescriptor) -> None:
        if file.name in seen:
            return
        seen.add(file.name)
        for dependency in file.dependencies:
            add(dependency)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        pool.Add(proto)

    for file in files:
        add(file)
    return pool


class _Interceptor(grpc.aio.ServerInterceptor):
    """Gives every handler its span, its metrics, and typed errors on the way out."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(details)
        if handler is None or details.method.startswith(UNTRACED):
            return handler
        wrap = _stream_response if handler.response_streaming else _unary_response
        behaviour = wrap(_behaviour(handler), details.method)
        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        return make(behaviour, handler.request_deserializer, handler.response_serializer)


def _behaviour(handler: Any) -> Callable[..., Any]:
    return next(
        f
        for f in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        if f is not None
    )


class _Observed:
    """Context manager around one call: span from the caller's trace, metrics, error mapping."""

    def __init__(self, method: str, context: grpc.aio.ServicerContext) -> None:
        self.method, self.context = method, context
        self.code = grpc.StatusCode.OK

    async def __aenter__(self) -> None:
        metadata = {k: v for k, v in self.context.invocation_metadata() or () if isinstance(v, str)}
        parent = telemetry.extract(metadata)
        _, service, name = self.method.split("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        self._span = telemetry.TRACER.start_span(name, parent, SpanKind.SERVER, attributes)
        # Never detached: each call has a task, and with it a context, of its own; and the generator of a
        # stream whose reader left is closed in another one.
        otel_context.attach(trace.set_span_in_context(self._span, parent))
        metrics.RPC_IN_FLIGHT.labels(self.method).inc()
        self._started = time.perf_counter()

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, RouseError):
            self.code = error.code
        elif isinstance(error, ENDED_BY_CALLER):
            self.code = grpc.StatusCode.CANCELLED
        elif isinstance(error, TimeoutError):
            self.code = grpc.StatusCode.DEADLINE_EXCEEDED
        elif isinstance(error, grpc.aio.AbortError):
            self.code = self.context.code() or grpc.StatusCode.UNKNOWN
        elif error is not None:
            self.code = grpc.StatusCode.INTERNAL
        self._span.set_attribute("rpc.grpc.status_code", self.code.value[0])
        if error is not None:
            telemetry.fail(self._span, error)
        self._span.end()
        metrics.RPC_IN_FLIGHT.labels(self.method).dec()
        metrics.RPC_LATENCY.labels(self.method).observe(time.perf_counter() - self._started)
        metrics.RPC_REQUESTS.labels(self.method, self.code.name).inc()
        if error is not None and not isinstance(error, (*ENDED_BY_CALLER, grpc.aio.AbortError)):
            await self._answer(error)

    async def _answer(self, error: BaseException) -> None:
        if isinstance(error, TimeoutError):
            error = DeadlineExceeded("DEADLINE_EXCEEDED", f"{self.method} ran out of time")
        if not isinstance(error, RouseError):
            LOG.error("%s failed unexpectedly", self.method, exc_info=error)
            error = Internal("INTERNAL_ERROR", f"{self.method} failed unexpectedly; the service's log has the details")
        assert self.code is not grpc.StatusCode.OK
        details = encode_details(self.code.value[0], error.message, error.details)
        # It raises.
        await self.context.abort(self.code, shortened(error.message), ((DETAILS_KEY, details),))


def _unary_response(behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
    async def handle(request: Any, context: grpc.aio.ServicerContext) -> Any:
        async with _Observed(method, context):
            return await behaviour(request, context)

    return handle


def _stream_response(behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
    async def handle(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        async with _Observed(method, context), aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                yield response

    return handle
