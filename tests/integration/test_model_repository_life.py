"""model-repository across restarts of its own and of NATS."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from rouse_bus import Bus
from rouse_bus.objects import ObjectStore
from rouse_common.errors import (
    RouseError,
    Unavailable,
)
from rouse_contracts import repository
from rouse_embedded.stores import Nats
from rouse_model_repository.app import ModelRepositoryApp
from rouse_model_repository.config import ModelRepositoryConfig
from rouse_testkit.repository_client import (
    MODEL,
    WEIGHTS,
    RepositoryClient,
    header,
    sha256,
    until_health,
)
from rouse_testkit.running import running


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def config(nats_url: str, spool: Path) -> ModelRepositoryConfig:
    return ModelRepositoryConfig(nats=nats_url, spool_dir=str(spool), max_blob_mib=256, drain_s=1)


@pytest.fixture
async def client(config: ModelRepositoryConfig) -> AsyncIterator[RepositoryClient]:
    async with running(ModelRepositoryApp(config)) as service:
        client = RepositoryClient(await service.ready())
        await until_health(client.channel, serving=True)
        yield client
        await client.close()


def left_in(spool: Path) -> list[str]:
    return [path.name for path in spool.iterdir()]


# ---- Living with NATS --------------------------------------------------------------------------


async def test_everything_is_there_after_a_restart(config: ModelRepositoryConfig) -> None:
    async with running(ModelRepositoryApp(config)) as service:
        client = RepositoryClient(await service.ready())
        await until_health(client.channel, serving=True)
        artefact = await client.deploy(MODEL)
        await client.put(b"uploaded, not yet committed")
        await client.close()
    async with running(ModelRepositoryApp(config)) as service:
        client = RepositoryClient(await service.ready())
        await until_health(client.channel, serving=True)
        assert await client.artefact(artefact.digest) == artefact
        assert await client.missing([sha256(b"uploaded, not yet committed")]) == []
        assert await client.delete(artefact.digest) == artefact.size_bytes
        await client.close()


async def test_a_blob_that_no_artefact_names_is_deleted_after_a_time(nats_url: str, spool: Path) -> None:
    from rouse_model_repository import app

    config = ModelRepositoryConfig(nats=nats_url, spool_dir=str(spool), uncommitted_s=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "COLLECT_EVERY_S", 0.05)
        async with running(ModelRepositoryApp(config)) as service:
            client = RepositoryClient(await service.ready())
            await until_health(client.channel, serving=True)
            artefact = await client.deploy(MODEL)
            await client.put(b"nobody")
            async with asyncio.timeout(20):
                before = (await client.list()).stored_bytes
                while (await client.list()).stored_bytes == before:
                    pass
            assert await client.missing([sha256(b"nobody"), sha256(WEIGHTS)]) == [sha256(b"nobody")]
            assert await client.artefact(artefact.digest) == artefact
            await client.close()


async def test_without_nats_it_says_so_and_comes_back(nats: Nats, client: RepositoryClient) -> None:
    artefact = await client.deploy(MODEL)
    nats.kill()
    await until_health(client.channel, serving=False)
    for call in (
        client.missing([sha256(b"x")]), client.put(b"x"), client.get(sha256(WEIGHTS)), client.commit(MODEL),
        client.artefact(artefact.digest), client.delete(artefact.digest), client.list(),
    ):  # fmt: skip
        with pytest.raises(Unavailable) as caught:
            await call
        assert caught.value.reason == "BUS_DOWN"
    await asyncio.to_thread(nats.start)
    await until_health(client.channel, serving=True)
    assert await client.artefact(artefact.digest) == artefact
    assert await client.get(sha256(WEIGHTS)) == WEIGHTS


async def test_starts_without_nats_and_waits(nats: Nats, config: ModelRepositoryConfig) -> None:
    nats.stop()
    async with running(ModelRepositoryApp(config)) as service:
        client = RepositoryClient(await service.ready())
        with pytest.raises(Unavailable):
            await client.list()
        await asyncio.to_thread(nats.start)
        await until_health(client.channel, serving=True)
        assert (await client.list()).stored_bytes == 0
        await client.close()


async def test_what_a_former_process_was_cut_off_from_is_swept(
    nats_url: str, config: ModelRepositoryConfig, tmp_path: Path
) -> None:
    bus = await Bus.connect(nats_url, "killed")
    store = ObjectStore(bus, "artefacts")
    await store.ensure()
    (tmp_path / "half").write_bytes(bytes(64 << 20))
    putting = asyncio.create_task(store.put_file("blobs/half", tmp_path / "half"))
    while not putting.done() and await store.size() < 4 << 20:
        pass
    await bus.close()
    with pytest.raises(RouseError):
        await putting
    async with running(ModelRepositoryApp(config)) as service:
        client = RepositoryClient(await service.ready())
        await until_health(client.channel, serving=True)
        assert (await client.list()).stored_bytes == 0
        await client.close()


async def test_health_and_deadline(client: RepositoryClient) -> None:
    data = os.urandom(2 << 20)

    async def slowly() -> AsyncIterator[repository.PutBlobRequest]:
        yield header(sha256(data), len(data))
        await asyncio.Event().wait()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.stub.PutBlob(slowly(), timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
