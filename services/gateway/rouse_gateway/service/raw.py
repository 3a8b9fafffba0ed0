"""Registering handlers that take and give serialised messages, beside generated ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import grpc


def register_raw(register: Callable[[Any, Any], None], methods: Collection[str]) -> Callable[[Any, Any], None]:
    """A generated `add_…_to_server` whose `methods` get and give bytes instead of messages."""

    def add(servicer: Any, server: Any) -> None:
        register(servicer, _Registrar(server, methods))

    return add


class _Registrar:
    """Stands in for the server while generated code registers, and hands the handlers on."""

    def __init__(self, server: Any, methods: Collection[str]) -> None:
        self._server = server
        self._methods = methods

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """What the generated code gives here it gives to add_registered_method_handlers as well."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        changed = {
            name: _without_serialisers(handler) if name in self._methods else handler
            for name, handler in handlers.items()
        }
        self._server.add_registered_method_handlers(service, changed)


def _without_serialisers(handler: Any) -> grpc.RpcMethodHandler:
    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(handler.stream_stream)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(handler.unary_stream)
    return grpc.unary_unary_rpc_method_handler(handler.unary_unary)
