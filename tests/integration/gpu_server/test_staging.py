"""Artefacts on their way: model-repository, disk, host memory; bounded, verified, single flight."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rouse_common.errors import DataLoss, NotFound, ResourceExhausted, RouseError, Unavailable
from rouse_contracts.functions import ArtefactFile
from rouse_contracts.repository import Artefact
from rouse_testkit.gpu import WEIGHTS, MadeModel, make_model

if TYPE_CHECKING:
    from conftest import Node

KIB, MIB = 1024, 2**20


async def test_files_and_image_are_as_the_artefact_says(node: Node) -> None:
    await node.start()
    model = make_model("a", [100, 70 * KIB, 64, 1])
    node.repository.add(model)
    staged = await node.stage(model)
    for file in model.artefact.files:
        path = Path(staged.artefact_path) / file.path
        assert path.read_bytes() == model.blobs[file.digest]
        assert not path.stat().st_mode & 0o222
    image = node.memory / "host" / f"{model.artefact.digest}.img"
    assert staged.image_path == str(image)
    assert image.read_bytes()[: len(model.image)] == model.image
    assert staged.artefact == model.artefact
    described = await node.describe()
    assert described.disk_used_bytes == model.artefact.size_bytes
    assert described.host_used_bytes == image.stat().st_size
    assert [r.state for r in described.residency] == ["HOST"]


async def test_without_weights_there_is_no_image(node: Node) -> None:
    await node.start()
    model = make_model("plain", [])
    node.repository.add(model)
    staged = await node.stage(model)
    assert staged.image_path == ""
    assert (Path(staged.artefact_path) / "config.json").exists()


async def test_concurrent_calls_share_one_download(node: Node) -> None:
    await node.start()
    model = make_model("a", [3 * MIB])
    node.settings["device"] = ("host:d0=4MiB",)
    await node.stop()
    await node.start()
    node.repository.add(model)
    answers = await asyncio.gather(*(node.stage(model) for _ in range(8)))
    assert len({answer.image_path for answer in answers}) == 1
    assert set(node.repository.served.values()) == {1}


async def test_a_caller_that_gives_up_does_not_stop_the_others(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    node.repository.add(model)
    node.repository.gate.clear()
    impatient, patient = asyncio.create_task(node.stage(model)), asyncio.create_task(node.stage(model))
    async with asyncio.timeout(5):
        while not any(method == "GetBlob" for method, _ in node.repository.served):
            await node.describe()
    impatient.cancel()
    node.repository.gate.set()
    assert (await patient).image_path


async def test_a_broken_download_goes_on_where_it_stopped(node: Node) -> None:
    await node.start(device=("host:d0=8MiB",))
    model = make_model("a", [5 * MIB])
    node.repository.add(model)
    node.repository.break_after = 3
    await node.stage(model)
    assert max(node.repository.offsets) == 3 * MIB


async def test_a_wrong_blob_is_refused_and_nothing_is_kept(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    node.repository.add(model)
    digest = next(f.digest for f in model.artefact.files if f.path == WEIGHTS)
    right = node.repository.blobs[digest]
    for wrong in (b"x" + right[1:], right[:-1], right + b"x"):
        node.repository.blobs[digest] = wrong
        with pytest.raises(DataLoss) as refused:
            await node.stage(model)
        assert refused.value.reason == "HASH_MISMATCH"
        cache = node.folder / "cache"
        assert not [p for folder in ("blobs", "artefacts", "tmp") for p in (cache / folder).iterdir()]
        described = await node.describe()
        assert described.disk_used_bytes == described.host_used_bytes == 0
        assert [r.state for r in described.residency] == ["ABSENT"]
    node.repository.blobs[digest] = right
    await node.stage(model)


def changed(model: MadeModel, **fields: object) -> MadeModel:
    artefact = Artefact()
    artefact.CopyFrom(model.artefact)
    for name, value in fields.items():
        if name == "path":
            artefact.files[0].path = str(value)
        elif name == "image_bytes":
            artefact.layout.image_bytes = int(str(value))
        else:
            setattr(artefact.layout.tensors[0], name, value)
    return MadeModel(model.version, artefact, model.blobs, model.image)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"path": "../escape"}, "BAD_PATH"),
        ({"path": "/etc/passwd"}, "BAD_PATH"),
        ({"path": "a/../../b"}, "BAD_PATH"),
        ({"path": ""}, "BAD_PATH"),
        ({"path": WEIGHTS}, "BAD_PATH"),
        ({"path": "weights"}, "BAD_PATH"),
        ({"file": "config.json"}, "BAD_LAYOUT"),
        ({"file": "missing"}, "BAD_LAYOUT"),
        ({"file_offset_bytes": 2**40}, "BAD_LAYOUT"),
        ({"image_offset_bytes": 2**40}, "BAD_LAYOUT"),
        ({"image_offset_bytes": 3}, "BAD_LAYOUT"),
        ({"image_offset_bytes": 64 * KIB}, "BAD_LAYOUT"),
        ({"image_bytes": 64}, "BAD_LAYOUT"),
    ],
)
async def test_an_artefact_that_lies_is_refused(node: Node, fields: dict[str, object], reason: str) -> None:
    await node.start()
    node.repository.add(changed(make_model("a", [70 * KIB, 70 * KIB]), **fields))
    with pytest.raises(DataLoss) as refused:
        await node.stage(make_model("a", [70 * KIB, 70 * KIB]))
    assert refused.value.reason == reason
    assert not (node.folder / "escape").exists()


async def test_an_unknown_artefact_and_a_repository_that_fails_are_told_apart(node: Node) -> None:
    await node.start()
    model = make_model("a", [KIB])
    with pytest.raises(NotFound) as missing:
        await node.stage(model)
    assert missing.value.reason == "ARTEFACT_NOT_FOUND"
    node.repository.add(model)
    node.repository.failures[model.artefact.digest] = Unavailable("AWAY", "restarting")
    with pytest.raises(Unavailable):
        await node.stage(model)


async def test_host_memory_is_bounded_and_the_least_recently_used_leaves(node: Node) -> None:
    await node.start(host_memory="1MiB", stage_hold_s=0.0)
    a, b, c = (make_model(name, [400 * KIB]) for name in "abc")
    node.repository.add(a, b, c)
    for model in (a, b, a, c):
        await node.stage(model)
    assert await node.states() == {"a-v1": "HOST", "b-v1": "DISK", "c-v1": "HOST"}
    assert (await node.describe()).host_used_bytes == 800 * KIB
    assert len(list((node.memory / "host").iterdir())) == 2
    fetched = dict(node.repository.served)
    await node.stage(b)
    assert dict(node.repository.served) == fetched, "the disk tier still had it"


async def test_host_memory_keeps_what_instances_serve_and_says_when_it_is_full(node: Node) -> None:
    await node.start(host_memory="1MiB", stage_hold_s=0.0)
    a, b, c = (make_model(name, [400 * KIB]) for name in "abc")
    await node.deploy(a)
    await node.deploy(b)
    node.repository.add(c)
    with pytest.raises(ResourceExhausted) as full:
        await node.stage(c)
    assert full.value.reason == "HOST_MEMORY_FULL"
    assert full.value.retry_after_s
    # Its files are on disk: when an instance ends, the rest is quick.
    node.executors.popitem()
    await node.sync()
    await node.stage(c)
    assert await node.states() == {"a-v1": "HOST", "b-v1": "DISK", "c-v1": "HOST"}


async def test_what_was_just_staged_keeps_its_place_for_its_instance(node: Node) -> None:
    await node.start(host_memory="1MiB", stage_hold_s=60.0)
    a, b, c = (make_model(name, [400 * KIB]) for name in "abc")
    node.repository.add(a, b, c)
    await node.stage(a)
    await node.stage(b)
    with pytest.raises(ResourceExhausted, match="no room"):
        await node.stage(c)


async def test_the_disk_tier_is_bounded_too(node: Node) -> None:
    await node.start(cache_size="1MiB", stage_hold_s=0.0)
    a, b, c = (make_model(name, [400 * KIB]) for name in "abc")
    node.repository.add(a, b, c)
    for model in (a, b, c):
        await node.stage(model)
    assert await node.states() == {"b-v1": "HOST", "c-v1": "HOST"}
    described = await node.describe()
    blobs = sum(p.stat().st_size for p in (node.folder / "cache" / "blobs").iterdir())
    assert described.disk_used_bytes == blobs <= MIB
    big = make_model("big", [1000 * KIB])
    await node.executor(b)
    await node.sync()
    node.repository.add(big)
    with pytest.raises(ResourceExhausted) as full:
        await node.stage(big)
    assert full.value.reason == "DISK_FULL"


async def test_versions_of_one_artefact_share_its_memory(node: Node) -> None:
    await node.start()
    one, two = make_model("a", [300 * KIB]), make_model("a", [300 * KIB], version_id="a-v2")
    await node.deploy(one)
    await node.deploy(two)
    assert (await node.describe()).host_used_bytes == 300 * KIB
    await node.use(one)
    await node.use(two)
    freed = await node.drop(one)
    assert freed.device_freed_bytes == 300 * KIB
    assert freed.host_freed_bytes == freed.disk_freed_bytes == 0
    await node.use(two)


async def test_equal_files_are_stored_once_and_outlive_one_of_their_artefacts(node: Node) -> None:
    await node.start()
    a = make_model("a", [300 * KIB])
    artefact = Artefact()
    artefact.CopyFrom(a.artefact)
    extra = b"readme"
    digest = hashlib.sha256(extra).hexdigest()
    artefact.files.append(ArtefactFile(path="README", digest=digest, size_bytes=len(extra)))
    artefact.digest = hashlib.sha256(b"other").hexdigest()
    b = make_model("a", [300 * KIB], version_id="b-v1")
    b.version.artefact_digest = artefact.digest
    node.repository.add(a, MadeModel(b.version, artefact, a.blobs | {digest: extra}, a.image))
    await node.stage(a)
    await node.stage(b)
    assert (await node.describe()).disk_used_bytes == a.artefact.size_bytes + len(extra)
    assert (await node.drop(a)).disk_freed_bytes == 0
    assert (await node.drop(b)).disk_freed_bytes == a.artefact.size_bytes + len(extra)


async def test_an_instance_that_appears_unstaged_is_staged_and_its_requests_wait(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    node.repository.add(model)
    await node.executor(model)
    node.repository.gate.clear()
    await node.sync()
    asking = asyncio.create_task(node.use(model))
    await node.has_waiting(1)
    node.repository.gate.set()
    assert (await asking).swapped_in


async def test_a_request_whose_staging_fails_hears_why(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    await node.executor(model)
    node.repository.gate.clear()
    node.repository.add(model)
    digest = next(iter(model.blobs))
    node.repository.blobs[digest] += b"x"
    await node.sync()
    asking = asyncio.create_task(node.acquire(model))
    await node.has_waiting(1)
    node.repository.gate.set()
    with pytest.raises(RouseError) as failed:
        await asking
    assert failed.value.reason == "HASH_MISMATCH"
