"""model-repository over real gRPC and a real JetStream."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from rouse_bus import Bus
from rouse_bus.objects import ObjectStore
from rouse_common.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RouseError,
    Unavailable,
)
from rouse_contracts import repository
from rouse_contracts.functions import ARTEFACT_FORMAT_HUGGING_FACE, ARTEFACT_FORMAT_PYTHON, ArtefactFile
from rouse_embedded.stores import Nats
from rouse_model_repository.app import ModelRepositoryApp
from rouse_model_repository.config import ModelRepositoryConfig
from rouse_testkit.repository_client import RepositoryClient, header, safetensors, sha256, until_health
from rouse_testkit.running import running

WEIGHTS = safetensors({"a": ("F32", [3], bytes(12)), "b": ("U8", [5], b"hello")})
CONFIG = json.dumps(
    {"architectures": ["ResNetForImageClassification"], "model_type": "resnet", "num_channels": 3,
     "id2label": {str(n): f"label {n}" for n in range(10)}}
).encode()  # fmt: skip
MANIFEST = b"""
name = "f"
handler = "main:F"
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1]
"""
PACKAGE = {"rouse.toml": MANIFEST, "main.py": b"class F: pass\n", "pkg/__init__.py": b""}
MODEL = {"config.json": CONFIG, "model.safetensors": WEIGHTS}


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


# ---- Artefacts -------------------------------------------------------------------------------


async def test_a_hugging_face_directory(client: RepositoryClient) -> None:
    artefact = await client.deploy(MODEL)
    assert artefact.format == ARTEFACT_FORMAT_HUGGING_FACE
    assert artefact.architecture == "ResNetForImageClassification"
    assert artefact.size_bytes == len(CONFIG) + len(WEIGHTS)
    assert [file.path for file in artefact.files] == ["config.json", "model.safetensors"]
    assert [(t.name, list(t.shape)) for t in artefact.signature.inputs] == [("pixel_values", [-1, 3, -1, -1])]
    assert [(t.name, list(t.shape)) for t in artefact.signature.outputs] == [("logits", [-1, 10])]
    first, second = artefact.layout.tensors
    assert (first.name, first.image_offset_bytes, first.size_bytes) == ("a", 0, 12)
    assert (second.name, second.image_offset_bytes, second.size_bytes) == ("b", 64, 5)
    assert WEIGHTS[second.file_offset_bytes :] == b"hello"
    assert artefact.layout.image_bytes == 128
    assert await client.artefact(artefact.digest) == artefact


async def test_a_python_package(client: RepositoryClient) -> None:
    artefact = await client.deploy(PACKAGE | {"weights/w.safetensors": WEIGHTS})
    assert artefact.format == ARTEFACT_FORMAT_PYTHON
    assert artefact.architecture == ""
    assert [(t.name, t.datatype) for t in artefact.signature.inputs] == [("x", "FP32")]
    assert {t.file for t in artefact.layout.tensors} == {"weights/w.safetensors"}


async def test_an_unknown_architecture_has_no_signature_unless_it_is_given(client: RepositoryClient) -> None:
    config = json.dumps({"architectures": ["NovelForEverything"]}).encode()
    plain = await client.deploy({"config.json": config, "model.safetensors": WEIGHTS})
    assert not plain.signature.inputs
    manifest = MANIFEST.replace(b'handler = "main:F"', b"")
    given = await client.deploy({"config.json": config, "model.safetensors": WEIGHTS, "rouse.toml": manifest})
    assert given.format == ARTEFACT_FORMAT_HUGGING_FACE
    assert [t.name for t in given.signature.outputs] == ["y"]


async def test_a_sharded_model(client: RepositoryClient) -> None:
    one, two = safetensors({"a": ("F16", [2], bytes(4))}), safetensors({"b": ("F16", [3], bytes(6))})
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    files = {
        "config.json": CONFIG,
        "model-2.safetensors": two,
        "model-1.safetensors": one,
        "model.safetensors.index.json": json.dumps(index).encode(),
    }
    artefact = await client.deploy(files)
    assert [(t.file, t.image_offset_bytes) for t in artefact.layout.tensors] == [
        ("model-1.safetensors", 0),
        ("model-2.safetensors", 64),
    ]
    del files["model-2.safetensors"]
    with pytest.raises(InvalidArgument, match="names the file model-2"):
        await client.deploy(files)


@pytest.mark.parametrize(
    ("files", "reason", "names"),
    [
        ({**MODEL, "pytorch_model.bin": b"anything"}, "PICKLE_REFUSED", "pytorch_model.bin"),
        ({**PACKAGE, "data/notes.txt": pickle.dumps({"a": 1})}, "PICKLE_REFUSED", "data/notes.txt"),
        ({**PACKAGE, "w.safetensors": pickle.dumps([1])}, "PICKLE_REFUSED", "w.safetensors"),
        ({"config.json": CONFIG}, "BAD_ARTEFACT", "safetensors"),
        ({"config.json": b"{", "model.safetensors": WEIGHTS}, "BAD_ARTEFACT", "config.json"),
        ({"README.md": b"hello"}, "BAD_ARTEFACT", "rouse.toml"),
        ({**MODEL, "model.safetensors": WEIGHTS[:-1]}, "BAD_ARTEFACT", "model.safetensors"),
        ({**MODEL, "model.safetensors": b""}, "BAD_ARTEFACT", "model.safetensors"),
        ({**MODEL, "copy.safetensors": WEIGHTS}, "BAD_ARTEFACT", "tensor 'a'"),
        ({**PACKAGE, "rouse.toml": b"= 3"}, "BAD_SPEC", "rouse.toml"),
        ({**PACKAGE, "rouse.toml": MANIFEST.replace(b"FP32", b"FP31")}, "BAD_SPEC", "FP31"),
    ],
)
async def test_what_is_refused(client: RepositoryClient, files: dict[str, bytes], reason: str, names: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.deploy(files)
    assert caught.value.reason == reason
    assert names in caught.value.message
    assert (await client.list()).artefacts == []


async def test_paths_are_checked(client: RepositoryClient) -> None:
    await client.put(b"x")
    for path in ("../x", "/x", "a/../x", "a\\b"):
        with pytest.raises(InvalidArgument) as caught:
            await client.commit({path: b"x"})
        assert caught.value.reason == "BAD_PATH"


async def test_a_commit_of_what_is_not_uploaded(client: RepositoryClient) -> None:
    await client.put(PACKAGE["main.py"])
    with pytest.raises(FailedPrecondition) as caught:
        await client.commit(PACKAGE)
    assert caught.value.reason == "BLOB_MISSING"
    assert "rouse.toml" in caught.value.message


async def test_a_wrong_size_in_the_list(client: RepositoryClient) -> None:
    await client.put(b"x = 1")
    with pytest.raises(InvalidArgument) as caught:
        await client.commit_files([ArtefactFile(path="main.py", digest=sha256(b"x = 1"), size_bytes=6)])
    assert caught.value.reason == "BAD_ARTEFACT"


async def test_the_same_files_are_the_same_artefact(client: RepositoryClient) -> None:
    first = await client.deploy(MODEL)
    assert await client.deploy(dict(reversed(MODEL.items()))) == first
    assert [artefact.digest for artefact in (await client.list()).artefacts] == [first.digest]
    other = await client.deploy({**MODEL, "notes.md": b""})
    assert other.digest != first.digest
    listed = await client.list()
    assert [a.digest for a in listed.artefacts] == sorted([first.digest, other.digest])
    assert all(a.layout.image_bytes == 128 and not a.layout.tensors for a in listed.artefacts)


async def test_deleting_gives_every_byte_back_that_nobody_else_names(client: RepositoryClient) -> None:
    first, second = await client.deploy(MODEL), await client.deploy({**MODEL, "notes.md": b"notes"})
    assert await client.delete(second.digest) == len(b"notes")
    assert (await client.artefact(first.digest)).digest == first.digest
    assert await client.get(sha256(WEIGHTS)) == WEIGHTS
    assert await client.delete(first.digest) == first.size_bytes
    assert await client.delete(first.digest) == 0
    with pytest.raises(NotFound) as caught:
        await client.artefact(first.digest)
    assert caught.value.reason == "ARTEFACT_NOT_FOUND"
    listed = await client.list()
    assert (list(listed.artefacts), listed.stored_bytes) == ([], 0)


async def test_a_blob_that_a_deploy_counts_on_survives_the_deletion_of_another(client: RepositoryClient) -> None:
    first = await client.deploy(MODEL)
    assert await client.missing([sha256(WEIGHTS), sha256(CONFIG)]) == []  # another deploy begins
    await client.delete(first.digest)
    assert (await client.commit(MODEL)).digest == first.digest
    assert await client.get(sha256(WEIGHTS)) == WEIGHTS


async def test_deploys_and_deletions_at_once_never_lose_a_blob(client: RepositoryClient) -> None:
    generator = random.Random(3)
    shared = [f"x = {n}\n".encode() * 50 for n in range(4)]

    async def life(number: int) -> None:
        for turn in range(4):
            chosen = generator.sample(shared, 2)
            files = {"main.py": chosen[0], "other.py": chosen[1], "own.py": f"{number} {turn % 2}".encode()}
            artefact = await client.deploy(files)
            for file in artefact.files:
                assert sha256(await client.get(file.digest)) == file.digest
            await client.delete(artefact.digest)

    await asyncio.gather(*(life(number) for number in range(8)))
    assert (await client.list()).artefacts == []


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
