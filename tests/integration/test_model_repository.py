"""Artefacts: what is recorded, refused, deleted. Over real gRPC and a real JetStream."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rouse_common.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from rouse_contracts.functions import ARTEFACT_FORMAT_HUGGING_FACE, ARTEFACT_FORMAT_PYTHON, ArtefactFile
from rouse_model_repository.app import ModelRepositoryApp
from rouse_model_repository.config import ModelRepositoryConfig
from rouse_testkit.repository_client import (
    CONFIG,
    MANIFEST,
    MODEL,
    PACKAGE,
    WEIGHTS,
    RepositoryClient,
    safetensors,
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


async def test_an_artefact_that_is_too_large_is_refused(nats_url: str, spool: Path) -> None:
    config = ModelRepositoryConfig(nats=nats_url, spool_dir=str(spool), max_artefact_mib=1, max_files=5, drain_s=1)
    async with running(ModelRepositoryApp(config)) as service:
        client = RepositoryClient(await service.ready())
        await until_health(client.channel, serving=True)
        for more in ({"a": bytes(600_000), "b": b"x" * 600_000}, {str(number): b"" for number in range(6)}):
            with pytest.raises(ResourceExhausted) as caught:
                await client.deploy({**PACKAGE, **more})
            assert caught.value.reason == "UPLOAD_TOO_LARGE"
        await client.close()


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
