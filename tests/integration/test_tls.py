"""TLS on real sockets: gRPC and links, mutual; strangers and plain connections refused; new certificates taken."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rouse_common.errors import RouseError, Unavailable
from rouse_common.link import Links, LinkServer
from rouse_common.rpc import Channels, RpcServer, call
from rouse_common.tls import MeshTls
from rouse_embedded.authority import Authority

MAX_BYTES = 1 << 20
TIMEOUT_S = 20.0
REFUSED_S = 2.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "tls", "127.0.0.1:1")
    made.prepare(["server", "client"])
    return made


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "stranger", "127.0.0.1:1")
    made.prepare(["client"])
    return made


@asynccontextmanager
async def rpc_server(authority: Authority) -> AsyncIterator[str]:
    server = RpcServer("127.0.0.1:0", max_message_bytes=MAX_BYTES, tls=MeshTls(authority.files("server")))
    await server.start()
    await server.set_serving(True)
    try:
        yield server.address
    finally:
        await server.stop(0)


async def asks(address: str, tls: MeshTls | None, timeout_s: float = TIMEOUT_S) -> int:
    channels = Channels(MAX_BYTES, tls)
    try:
        stub = health_pb2_grpc.HealthStub(channels.get(address))
        return int((await call(stub.Check, health_pb2.HealthCheckRequest(), timeout_s=timeout_s)).status)
    finally:
        await channels.close()


async def test_rpc_is_mutual(authority: Authority, stranger: Authority) -> None:
    async with rpc_server(authority) as address:
        assert await asks(address, MeshTls(authority.files("client"))) == 1
        assert await asks(f"localhost:{address.rpartition(':')[2]}", MeshTls(authority.files("client"))) == 1
        for refused in (None, stranger.tls()):
            with pytest.raises(RouseError):
                await asks(address, refused, REFUSED_S)
        # It believes the authority, but has nothing to show.
        nameless = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        async with grpc.aio.secure_channel(address, nameless) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=REFUSED_S)


async def test_a_server_takes_new_certificates_without_a_restart(authority: Authority) -> None:
    async with rpc_server(authority) as address:
        host, port = address.split(":")
        shown = await peer_certificate(host, int(port), authority)
        authority.files("server").cert.unlink()
        authority.prepare(["server"])
        assert await peer_certificate(host, int(port), authority) != shown
        assert await asks(address, MeshTls(authority.files("client"))) == 1


async def peer_certificate(host: str, port: int, authority: Authority) -> bytes:
    context = MeshTls(authority.files("client")).client_context()
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.wait_for(asyncio.open_connection(host, port, ssl=context), TIMEOUT_S)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


async def test_a_service_without_its_files_is_refused_by_links(authority: Authority, stranger: Authority) -> None:
    async def echo(request: object, incoming: object) -> list[bytes]:
        return [bytes(request)]  # type: ignore[call-overload]

    tls = MeshTls(authority.files("server"))
    server = LinkServer("127.0.0.1:0", max_message_bytes=MAX_BYTES, tls=tls.server_context())
    server.add("/test.v1.Test/Echo", echo)
    await server.start()
    try:
        nameless = ssl.create_default_context(cafile=authority.ca)
        for context in (None, nameless, stranger.tls().client_context()):
            links = Links(MAX_BYTES, context)
            with pytest.raises(Unavailable):
                await links.call(server.address, b"/test.v1.Test/Echo", [b"x"], REFUSED_S)
            await links.close()
        links = Links(MAX_BYTES, MeshTls(authority.files("client")).client_context())
        large = b"x" * 500_000
        assert bytes(await links.call(server.address, b"/test.v1.Test/Echo", [large], TIMEOUT_S)) == large
        await links.close()
    finally:
        await server.stop(0)


async def test_unix_sockets_stay_plain(authority: Authority, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    server = RpcServer(address, max_message_bytes=MAX_BYTES, tls=MeshTls(authority.files("server")))
    await server.start()
    await server.set_serving(True)
    assert await asks(address, MeshTls(authority.files("client"))) == 1
    assert await asks(address, None) == 1
    await server.stop(0)
