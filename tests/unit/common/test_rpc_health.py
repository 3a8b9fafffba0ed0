"""Health and reflection of RpcServer over real gRPC: Watch, both versions of reflection, and an end without waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from rouse_common.rpc import RpcServer
from rouse_contracts import node

NAME = "rouse.node.v1.NodeService"
State = health_pb2.HealthCheckResponse


class Site:
    def __init__(self) -> None:
        self.server = RpcServer("127.0.0.1:0", max_message_bytes=1 << 20)
        self.server.add(node.add_NodeServiceServicer_to_server, node.NodeServiceServicer(), node.DESCRIPTOR)

    def watch(self, service: str) -> Any:
        return health_pb2_grpc.HealthStub(self.channel).Watch(health_pb2.HealthCheckRequest(service=service))

    def reflect(self, version: str, *requests: reflection_pb2.ServerReflectionRequest) -> Any:
        call = self.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        return call(iter(requests)) if requests else call()

    @property
    def channel(self) -> grpc.aio.Channel:
        return self._channel

    async def __aenter__(self) -> Site:
        await self.server.start()
        self._channel = grpc.aio.insecure_channel(self.server.address)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.close()
        await self.server.stop(0)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as site:
        yield site


async def test_a_watch_sees_every_state_and_ends_with_the_server(site: Site) -> None:
    overall, named, nobody = (aiter(site.watch(name)) for name in ("", NAME, "nobody"))
    assert (await anext(nobody)).status == State.SERVICE_UNKNOWN
    for watch in (overall, named):
        assert (await anext(watch)).status == State.NOT_SERVING
    await site.server.set_serving(True)
    for watch in (overall, named):
        assert (await anext(watch)).status == State.SERVING
    # Who watches always reads: what came unread before the connection closed, gRPC may drop.
    last = [asyncio.ensure_future(anext(watch)) for watch in (overall, named)]
    drain_s = 60.0
    began = time.monotonic()
    await site.server.stop(drain_s)
    assert time.monotonic() - began < drain_s / 2, "nobody waits for who watches"
    for watch, read in zip((overall, named), last, strict=True):
        assert (await read).status == State.NOT_SERVING
        with pytest.raises(StopAsyncIteration):
            await anext(watch)


async def test_many_watch_one_service_and_one_that_leaves_disturbs_none(site: Site) -> None:
    leaving, *staying = [site.watch(NAME) for _ in range(5)]
    watches = [aiter(watch) for watch in staying]
    for watch in (aiter(leaving), *watches):
        assert (await anext(watch)).status == State.NOT_SERVING
    leaving.cancel()
    await site.server.set_serving(True)
    for watch in watches:
        assert (await anext(watch)).status == State.SERVING


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_both_versions_of_reflection_tell_the_same(site: Site, version: str) -> None:
    kind = reflection_pb2.ServerReflectionRequest
    symbols = [NAME, "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"]
    asked = [kind(list_services=""), *(kind(file_containing_symbol=symbol) for symbol in symbols)]
    listed, *files = [answer async for answer in site.reflect(version, *asked)]
    services = {service.name for service in listed.list_services_response.service}
    assert services == {*symbols, "grpc.health.v1.Health"}
    for symbol, answer in zip(symbols, files, strict=True):
        file = FileDescriptorProto.FromString(answer.file_descriptor_response.file_descriptor_proto[0])
        package, _, name = symbol.rpartition(".")
        assert file.package == package
        assert name in [service.name for service in file.service]
    unknown = [answer async for answer in site.reflect(version, kind(file_containing_symbol="no.Such"))]
    assert unknown[0].error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_an_open_reflection_stream_does_not_hold_a_stop_up(site: Site) -> None:
    call = site.reflect("v1")
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    assert (await call.read()).list_services_response.service
    drain_s = 60.0
    began = time.monotonic()
    await site.server.stop(drain_s)
    assert time.monotonic() - began < drain_s / 2


async def test_a_method_without_a_handler_is_unimplemented_by_name(site: Site) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.NodeServiceStub(site.channel).DescribeQueues(node.DescribeQueuesRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "DescribeQueues" in (caught.value.details() or "")
