"""Uploads and downloads of blobs, good and bad. Over real gRPC and a real JetStream."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rouse_common.errors import (
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from rouse_contracts import repository
from rouse_model_repository.app import ModelRepositoryApp
from rouse_model_repository.config import ModelRepositoryConfig
from rouse_testkit.repository_client import (
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


# ---- Blobs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (3 << 20) + 7])
async def test_a_blob_comes_back_as_it_was(client: RepositoryClient, spool: Path, size: int) -> None:
    data = os.urandom(size)
    assert await client.missing([sha256(data)]) == [sha256(data)]
    assert await client.put(data) == size
    assert await client.missing([sha256(data)]) == []
    assert await client.get(sha256(data)) == data
    for offset in {0, 1, size // 2, size} - set(range(size + 1, 9)):
        assert await client.get(sha256(data), offset) == data[offset:]
    assert left_in(spool) == []


async def test_messages_of_a_download_are_of_a_mebibyte_at_most(client: RepositoryClient) -> None:
    data = os.urandom((5 << 20) + 3)
    await client.put(data)
    request = repository.GetBlobRequest(digest=sha256(data), offset_bytes=100)
    sizes = [len(part.chunk) async for part in client.stub.GetBlob(request)]
    assert max(sizes) <= 1 << 20
    assert sum(sizes) == len(data) - 100


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"data": b"abc", "size": 4}, "UPLOAD_TRUNCATED"),
        ({"data": b"", "size": 4}, "UPLOAD_TRUNCATED"),
        ({"data": b"abc", "size": 2}, "UPLOAD_TOO_LONG"),
        ({"data": bytes(3 << 20), "size": (2 << 20) + 1}, "UPLOAD_TOO_LONG"),
        ({"data": b"abc", "digest": sha256(b"abd")}, "HASH_MISMATCH"),
        ({"data": b"abc", "digest": "../../etc/passwd"}, "BAD_DIGEST"),
        ({"data": b"abc", "digest": sha256(b"abc").upper()}, "BAD_DIGEST"),
    ],
)  # fmt: skip
async def test_a_bad_upload_leaves_nothing(
    client: RepositoryClient, spool: Path, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.put(**given)
    assert caught.value.reason == reason
    assert left_in(spool) == []
    assert await client.missing([sha256(given["data"])]) == [sha256(given["data"])]
    assert (await client.list()).stored_bytes == 0


async def test_what_is_too_large_is_refused_before_it_comes(client: RepositoryClient, spool: Path) -> None:
    with pytest.raises(ResourceExhausted) as caught:
        await client.put(b"", digest=sha256(b"x"), size=(256 << 20) + 1)
    assert caught.value.reason == "UPLOAD_TOO_LARGE"
    assert left_in(spool) == []


async def test_a_full_disk_is_told(nats_url: str, spool: Path) -> None:
    config = ModelRepositoryConfig(nats=nats_url, spool_dir=str(spool), max_blob_mib=1 << 22)
    async with running(ModelRepositoryApp(config)) as service:
        client = RepositoryClient(await service.ready())
        await until_health(client.channel, serving=True)
        with pytest.raises(ResourceExhausted) as caught:
            await client.put(b"", digest=sha256(b"x"), size=1 << 41)
        assert caught.value.reason == "DISK_FULL"
        assert caught.value.retry_after_s
        await client.close()


async def test_an_upload_without_a_header(client: RepositoryClient) -> None:
    async def chunk_first() -> AsyncIterator[repository.PutBlobRequest]:
        yield repository.PutBlobRequest(chunk=b"x")

    async def nothing() -> AsyncIterator[repository.PutBlobRequest]:
        parts: list[repository.PutBlobRequest] = []
        for part in parts:
            yield part

    for parts, reason in ((chunk_first(), "BAD_UPLOAD"), (nothing(), "UPLOAD_TRUNCATED")):
        with pytest.raises(InvalidArgument) as caught:
            await client.send(parts)
        assert caught.value.reason == reason


async def test_a_cancelled_upload_leaves_nothing(client: RepositoryClient, spool: Path) -> None:
    data = os.urandom(8 << 20)
    never, arrived = asyncio.Event(), asyncio.Event()

    async def parts() -> AsyncIterator[repository.PutBlobRequest]:
        yield header(sha256(data), len(data))
        yield repository.PutBlobRequest(chunk=data[: 4 << 20])
        arrived.set()
        await never.wait()

    uploading = asyncio.create_task(client.send(parts()))
    await asyncio.wait_for(arrived.wait(), 20)
    while not left_in(spool):
        await client.list()
    uploading.cancel()
    await asyncio.wait({uploading})
    async with asyncio.timeout(20):
        while left_in(spool):
            await client.list()
    assert await client.missing([sha256(data)]) == [sha256(data)]
    assert (await client.list()).stored_bytes == 0


async def test_one_blob_uploaded_by_many_at_once_is_stored_once(client: RepositoryClient, spool: Path) -> None:
    data = os.urandom(4 << 20)
    assert await asyncio.gather(*(client.put(data) for _ in range(6))) == [len(data)] * 6
    assert await client.get(sha256(data)) == data
    assert (await client.list()).stored_bytes < len(data) * 1.1
    assert left_in(spool) == []


async def test_unknown_blobs_and_offsets_past_the_end(client: RepositoryClient) -> None:
    with pytest.raises(NotFound) as caught:
        await client.get(sha256(b"never"))
    assert caught.value.reason == "BLOB_NOT_FOUND"
    await client.put(b"abc")
    with pytest.raises(InvalidArgument):
        await client.get(sha256(b"abc"), 4)


async def test_the_spool_is_emptied_at_start(config: ModelRepositoryConfig, spool: Path) -> None:
    spool.mkdir()  # noqa: ASYNC240
    (spool / "0123.upload").write_bytes(b"left behind")
    (spool / "not-ours.txt").write_bytes(b"kept")
    async with running(ModelRepositoryApp(config)) as service:
        await service.ready()
        assert left_in(spool) == ["not-ours.txt"]
