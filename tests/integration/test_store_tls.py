"""TLS to the stores by their URLs: the authority that is named is believed and no other, hosts are checked, and
nothing is said in plain text where a URL asks for TLS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from rouse_bus import Bus
from rouse_cache import Answers, Limits, Rate, Windows
from rouse_cache.answers import Known, Name
from rouse_common.errors import RouseError, Unavailable
from rouse_common.tls import TlsFiles
from rouse_embedded.authority import Authority
from rouse_embedded.stores import Nats, Postgres, Redis
from rouse_store import Database, migrate
from rouse_testkit.tls_front import tls_front

WAIT_S = 20.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "tls", "127.0.0.1:1")
    made.prepare(["store", "client"])
    return made


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "stranger", "127.0.0.1:1")
    made.prepare(["client"])
    return made


class TlsNats(Nats):
    """A real server that speaks TLS."""

    def __init__(self, folder: Path, files: TlsFiles, **tls: object) -> None:
        super().__init__(folder)
        self._tls = {"cert_file": str(files.cert), "key_file": str(files.key), "ca_file": str(files.ca), **tls}

    def prepare(self) -> None:
        super().prepare()
        path = self.folder / "nats.conf"
        settings = json.loads(path.read_text()) | {"host": "0.0.0.0", "tls": self._tls}
        path.write_text(json.dumps(settings))

    def over_tls(self, ca: Path, more: str = "", host: str = "127.0.0.1") -> str:
        return f"{self.url.replace('nats://', 'tls://').replace('127.0.0.1', host)}?tls_ca={ca}{more}"


@pytest.fixture
def tls_nats(tmp_path: Path, authority: Authority) -> Iterator[TlsNats]:
    server = TlsNats(tmp_path / "nats", authority.files("store"), verify=True)
    server.start()
    yield server
    server.stop()


async def reached(url: str) -> bool:
    """Whether NATS is spoken with; where it is not, a second has to do."""
    bus = Bus.open(url, "test")
    try:
        async with asyncio.timeout(WAIT_S if "client.crt" in url else 1):
            await bus.wait_connected()
        await bus.publish("rouse.test", b"hello")
    except (TimeoutError, RouseError):
        return False
    finally:
        await bus.close()
    return True


async def test_nats_is_reached_by_who_believes_it_and_proves_itself(
    tls_nats: TlsNats, authority: Authority, stranger: Authority
) -> None:
    own = authority.files("client")
    proof = f"&tls_cert={own.cert}&tls_key={own.key}"
    assert await reached(tls_nats.over_tls(authority.ca, proof))
    assert await reached(tls_nats.over_tls(authority.ca, proof, "localhost"))
    assert not await reached(tls_nats.over_tls(authority.ca)), "it proved nothing"
    others = stranger.files("client")
    assert not await reached(tls_nats.over_tls(authority.ca, f"&tls_cert={others.cert}&tls_key={others.key}"))
    assert not await reached(tls_nats.over_tls(stranger.ca, proof)), "another authority was believed"
    # A name that the certificate does not have.
    assert not await reached(tls_nats.over_tls(authority.ca, proof, "127.0.0.2"))


async def test_a_nats_without_tls_hears_no_password(authority: Authority) -> None:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"auth_required":true}\r\n')
        await writer.drain()
        heard.append(await reader.read(4096))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert not await reached(f"tls://rouse:secret@127.0.0.1:{port}?tls_ca={authority.ca}")
    assert heard
    assert not any(heard), "something was said in plain text"


async def test_redis_is_spoken_with_over_tls(
    redis_server: Redis, redis_url: str, authority: Authority, stranger: Authority
) -> None:
    async with tls_front(redis_server.port, authority.files("store")) as port:
        url = redis_url.replace("redis://", "rediss://").replace(f":{redis_server.port}", f":{port}")
        answers = Answers.connect(f"{url}?ssl_ca_certs={authority.ca}")
        assert (await answers.reserve(Name("t", "f", "k"), "d", 5.0)).known is Known.NEW
        await answers.close()
        windows = Windows.connect(f"{url}?ssl_ca_certs={authority.ca}")
        windows.count_arrival("f")
        await windows.flush()
        await windows.close()
        limits = Limits.connect(f"{url}?ssl_ca_certs={authority.ca}")
        asking = asyncio.create_task(limits.run())
        assert await limits.take("t", Rate(1.0, 1)) == 0.0
        asking.cancel()
        await limits.close()
        for bad in (
            f"{url}?ssl_ca_certs={stranger.ca}",
            url,
            f"{url.replace('127.0.0.1', '127.0.0.2')}?ssl_ca_certs={authority.ca}",
        ):
            refused = Answers.connect(bad)
            with pytest.raises(Unavailable):
                await refused.reserve(Name("t", "f", "k"), "d", 5.0)
            await refused.close()


async def test_postgres_is_spoken_with_over_tls(
    postgres: Postgres, postgres_url: str, authority: Authority, stranger: Authority
) -> None:
    async with tls_front(postgres.port, authority.files("store"), postgres=True) as port:
        url = postgres_url.replace(f":{postgres.port}/", f":{port}/")
        verified = f"{url}?sslmode=verify-full&sslrootcert={authority.ca}"
        await asyncio.to_thread(migrate.upgrade, verified)
        database = Database(verified)
        assert await database.run(lambda unit: unit.session.scalar(text("SELECT 1"))) == 1
        await database.close()
        for bad in (
            f"{url}?sslmode=verify-full&sslrootcert={stranger.ca}",
            f"{url.replace('127.0.0.1', '127.0.0.2')}?sslmode=verify-full&sslrootcert={authority.ca}",
            f"{url}?sslmode=disable",
        ):
            refused = Database(bad)
            with pytest.raises(Unavailable):
                await refused.run(lambda unit: unit.session.scalar(text("SELECT 1")))
            await refused.close()


async def test_postgres_without_tls_is_refused_where_the_url_asks_for_it(
    postgres_url: str, authority: Authority
) -> None:
    refused = Database(f"{postgres_url}?sslmode=verify-full&sslrootcert={authority.ca}")
    with pytest.raises(Unavailable):
        await refused.run(lambda unit: unit.session.scalar(text("SELECT 1")))
    await refused.close()
