"""Server reflection, as version v1 and v1alpha: which services there are, and their contracts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

ALPHA: str = reflection.SERVICE_NAME
STABLE = "grpc.reflection.v1.ServerReflection"
METHOD = "ServerReflectionInfo"
METHOD_ENDS = ("input_type", "output_type")


class Reflection:
    """Answers both versions, whose messages are the same on the wire. Its streams end with the server.

    Args:
        services: full names of the server's services.
        files: contracts of these; they may live in different pools (see contracts/generate.py).
    """

    def __init__(self, services: Iterable[str], files: Iterable[FileDescriptor]) -> None:
        protos = [*(_proto(file) for file in _with_dependencies([*files, reflection_pb2.DESCRIPTOR])), _stable_proto()]
        pool = descriptor_pool.DescriptorPool()
        for proto in protos:
            pool.Add(proto)
        self._servicer = reflection.aio.ReflectionServicer([*services, ALPHA, STABLE], pool=pool)
        self._reading: set[asyncio.Timeout] = set()
        self._closed = False

    def register(self, server: grpc.aio.Server) -> None:
        """Adds both versions to a server."""
        handler = grpc.stream_stream_rpc_method_handler(
            self._answer,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        for service in (ALPHA, STABLE):
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {METHOD: handler}),))

    def close(self) -> None:
        """Ends the streams that are open."""
        self._closed = True
        for reading in self._reading:
            reading.reschedule(asyncio.get_running_loop().time())

    async def _answer(self, requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        async for response in self._servicer.ServerReflectionInfo(self._until_closed(requests), context):
            yield response

    async def _until_closed(self, requests: Any) -> AsyncIterator[Any]:
        """The requests of a stream, which end when the server stops. Only waiting for one is cut short: an answer
        that is being sent is sent whole."""
        each = aiter(requests)
        while not self._closed:
            try:
                async with asyncio.timeout(None) as reading:
                    self._reading.add(reading)
                    try:
                        request = await anext(each)
                    finally:
                        self._reading.discard(reading)
            except (StopAsyncIteration, TimeoutError):
                return
            yield request


def _with_dependencies(files: Iterable[FileDescriptor]) -> Iterable[FileDescriptor]:
    """Every file once, each behind what it needs."""
    found: dict[str, FileDescriptor] = {}

    def add(file: FileDescriptor) -> None:
        if file.name not in found:
            for dependency in file.dependencies:
                add(dependency)
            found[file.name] = file

    for file in files:
        add(file)
    return found.values()


def _proto(file: FileDescriptor) -> descriptor_pb2.FileDescriptorProto:
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    return proto


def _stable_proto() -> descriptor_pb2.FileDescriptorProto:
    """The contract of v1: that of v1alpha under another name."""
    serialised = _proto(reflection_pb2.DESCRIPTOR)
    package = serialised.package
    serialised.package = STABLE.rpartition(".")[0]
    serialised.name = "grpc/reflection/v1/reflection.proto"
    named = [
        *((field, "type_name") for message in serialised.message_type for field in message.field if field.type_name),
        *((method, end) for service in serialised.service for method in service.method for end in METHOD_ENDS),
    ]
    for owner, attribute in named:
        setattr(owner, attribute, getattr(owner, attribute).replace(f".{package}.", f".{serialised.package}."))
    return serialised
