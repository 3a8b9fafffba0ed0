"""A gRPC server with what every service needs: traces, typed errors, metrics, health, reflection, drain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Protocol

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rouse_common import telemetry
from rouse_common.errors import InvalidArgument, RouseError, Unimplemented
from rouse_common.observed import Observed
from rouse_common.rpc import health
from rouse_common.rpc.health import Health
from rouse_common.rpc.options import server_options
from rouse_common.rpc.reflection import Reflection
from rouse_common.tasks import unless
from rouse_common.tls import ServerTls
from rouse_contracts.status import DETAILS_KEY, encode_details, shortened


class Guard(Protocol):
    """Who may call what."""

    def admit(self, method: str, metadata: Mapping[str, str], peer: str) -> None:
        """Raises the RouseError that refuses a call of a method, as /package.Service/Method."""
        ...

    async def lost(self, method: str, metadata: Mapping[str, str]) -> RouseError | None:
        """Returns once a call that was admitted would be refused, and with what; None where that cannot be."""
        ...


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
        guard: asked before every call but those of health and reflection; streams of responses end when it would
            not admit them any more.
        tls: what it shows and asks for; None: plain. Unix sockets are plain always.
    """

    def __init__(
        self, listen: str, *, max_message_bytes: int, max_concurrent: int = 10_000, tls: ServerTls | None = None,
        guard: Guard | None = None,
    ) -> None:  # fmt: skip
        self._server = grpc.aio.server(
            options=server_options(max_message_bytes),
            maximum_concurrent_rpcs=max_concurrent,
        )
        self._listen, self._tls = listen, tls
        self._health = Health()
        self._reflection: Reflection | None = None
        self._registrar = _Registrar(self._server, partial(_observed, guard))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, _Registrar(self._server, _as_it_is))
        self._services: list[str] = []
        self._files: list[FileDescriptor] = []
        self.address = listen

    def add(self, register: Callable[[Any, Any], None], servicer: object, contract: FileDescriptor) -> None:
        """Adds a servicer with its generated `add_…_to_server` and the contract's DESCRIPTOR."""
        register(servicer, self._registrar)
        bases = {base.__name__ for base in type(servicer).__mro__}
        self._services += [s.full_name for s in contract.services_by_name.values() if f"{s.name}Servicer" in bases]
        self._files.append(contract)

    async def start(self) -> None:
        """Binds and serves; sets `address`. Raises OSError where the address is taken."""
        names = [*self._services, health.SERVICE_NAME]
        self._reflection = Reflection(names, [*self._files, health_pb2.DESCRIPTOR])
        self._reflection.register(self._server)
        try:
            if self._tls is None or self._listen.startswith("unix:"):
                port = self._server.add_insecure_port(self._listen)
            else:
                port = self._server.add_secure_port(self._listen, self._tls.server_credentials())
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._listen}; is another process using it?") from error
        if not self._listen.startswith("unix:"):
            self.address = f"{self._listen.rpartition(':')[0]}:{port}"
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Sets the health that `grpc.health.v1` answers, overall and for each service."""
        self._health.set(("", *self._services), health.SERVING if serving else health.NOT_SERVING)

    async def stop(self, drain_s: float) -> None:
        """Not ready, accept no more, wait up to `drain_s` for calls in flight, close. Who watches the health is
        told, and not waited for."""
        await self.set_serving(False)
        self._health.close()
        if self._reflection is not None:
            self._reflection.close()
        await self._server.stop(drain_s)


class _Registrar:
    """Stands in for the server while generated code registers, and wraps every handler.

    That is not done by an interceptor, which grpc.aio runs anew at every call. And methods are not registered one by
    one: grpc.aio would wait for a call of each of them, and begin to wait anew for all at every call; with the
    gateway's 48 methods that was a quarter of its time.
    """

    def __init__(self, server: grpc.aio.Server, wrap: Callable[[str, Any], grpc.RpcMethodHandler]) -> None:
        self._server, self._wrap = server, wrap

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """What generated code gives here it gives to add_registered_method_handlers as well."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        served = {name: self._wrap(f"/{service}/{name}", handler) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, served),))


def _as_it_is(method: str, handler: Any) -> grpc.RpcMethodHandler:
    return handler


def _observed(guard: Guard | None, method: str, handler: Any) -> grpc.RpcMethodHandler:
    """The handler with its span, its metrics, and typed errors on the way out."""
    wrap = _stream_response if handler.response_streaming else _unary_response
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(wrap(_behaviour(handler, method), method, guard), None, handler.response_serializer)


def _decoder(parse: Callable[[bytes], Any] | None, streaming: bool, method: str) -> Callable[[Any], Any]:
    """What makes messages of what came: of bytes, or of an iterator over them."""
    if parse is None:
        return lambda request: request

    def decode(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            raise InvalidArgument(
                "MALFORMED_REQUEST", f"{method}: the request is no message of the contract: {error}", method=method
            ) from None

    async def decode_each(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in requests:
            yield decode(data)

    return decode_each if streaming else decode


def _behaviour(handler: Any, method: str) -> Callable[..., Any]:
    """The handler, given what came. It parses when it is called, within what is observed: so a message that is none
    is answered by a typed error, and who may not call is refused before."""
    behaviour = next(
        f
        for f in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        if f is not None
    )
    decode = _decoder(handler.request_deserializer, handler.request_streaming, method)
    return lambda request, context: behaviour(decode(request), context)


class _Observed:
    """Context manager around one call: span, metrics, error mapping."""

    def __init__(self, method: str, context: grpc.aio.ServicerContext) -> None:
        self._method, self._context = method, context
        self._metadata = {k: v for k, v in context.invocation_metadata() or () if isinstance(v, str)}
        self._observed = Observed("grpc", method, telemetry.extract(self._metadata))

    async def __aenter__(self) -> _Observed:
        return self

    def pass_by(self, guard: Guard | None) -> None:
        """Asks the guard. Raises what it refuses with."""
        if guard is not None:
            guard.admit(self._method, self._metadata, self._context.peer())

    @asynccontextmanager
    async def while_admitted(self, guard: Guard | None) -> AsyncIterator[None]:
        """As long as the guard admits the call. Raises what it would refuse it with."""
        if guard is None:
            yield
            return
        async with unless(partial(guard.lost, self._method, self._metadata)):
            yield

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            self._observed.end(None)
            return
        if isinstance(error, NotImplementedError) and self._context.code() is grpc.StatusCode.UNIMPLEMENTED:
            # What generated code does for a method that a servicer does not have.
            error = Unimplemented("NOT_SERVED", f"{self._method} is not served here by gRPC", method=self._method)
        aborted = isinstance(error, grpc.aio.AbortError)
        code = (self._context.code() or grpc.StatusCode.UNKNOWN) if aborted else None
        typed = self._observed.end(error, code)
        if typed is not None:
            details = encode_details(typed.code.value[0], typed.message, typed.details)
            # It raises.
            await self._context.abort(typed.code, shortened(typed.message), ((DETAILS_KEY, details),))


def _unary_response(behaviour: Callable[..., Any], method: str, guard: Guard | None) -> Callable[..., Any]:
    async def handle(request: Any, context: grpc.aio.ServicerContext) -> Any:
        async with _Observed(method, context) as observed:
            observed.pass_by(guard)
            return await behaviour(request, context)

    return handle


def _stream_response(behaviour: Callable[..., Any], method: str, guard: Guard | None) -> Callable[..., Any]:
    async def handle(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        async with _Observed(method, context) as observed:
            observed.pass_by(guard)
            async with observed.while_admitted(guard), aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response

    return handle
