"""Materialised states on nodes, with a real model-repository: one node makes them, another one has them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rouse_common.clock import SystemClock
from rouse_common.errors import FailedPrecondition, RouseError
from rouse_common.rpc import Channels
from rouse_contracts import states as rules
from rouse_contracts.functions import AddressRange, Execution, FunctionSpec, FunctionVersion
from rouse_contracts.repository import Artefact, StateKind
from rouse_gpu_server.adapters.disk import Disk
from rouse_gpu_server.adapters.images import Images
from rouse_gpu_server.adapters.repository import RepositoryClient as Repository
from rouse_gpu_server.logic.shelf import Shelf, torch_version
from rouse_gpu_server.logic.stager import Stager, TierLimits
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.state.pool import Pool
from rouse_gpu_server.state.records import Artefact as Record
from rouse_gpu_server.state.records import Model
from rouse_gpu_server.state.waiting import WaitingList
from rouse_gpu_server.state.wakeup import Wakeup
from rouse_model_repository.app import ModelRepositoryApp
from rouse_model_repository.config import ModelRepositoryConfig
from rouse_testkit.repository_client import MODEL, RepositoryClient, until_health
from rouse_testkit.running import running

MIB = 1 << 20
BASE = 0x5000_0000_0000
TAPE = StateKind.STATE_KIND_TAPE
TAPE_NAME = "x:FP32:2,3;>y;#0"


class Tiers:
    """The tiers of one node: disk and host memory over a real repository, without devices."""

    def __init__(self, folder: Path, address: str, torch: str = "2.13.0", cache_bytes: int = 16 * MIB) -> None:
        self.folder, self._address, self._torch, self._cache_bytes = folder, address, torch, cache_bytes
        self._stack = AsyncExitStack()
        self._threads = ThreadPoolExecutor(2)
        self._channels = Channels(16 * MIB)

    async def __aenter__(self) -> Tiers:
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._background = Background(group)
        repository, self.disk = Repository(self._channels, self._address), Disk(self.folder / "cache")
        images = Images(self.folder / "host")
        self.pool = Pool({}, WaitingList(1))
        self.stager = Stager(
            self.pool, repository, self.disk, images, self._background, Wakeup(), SystemClock(),
            self._threads, TierLimits(16 * MIB, self._cache_bytes, 30.0),
        )  # fmt: skip
        self.stager.clear_devices = self._nothing
        await self.stager.recover()
        self.shelf = Shelf(
            repository, self.disk, self.stager, self._threads, "host", self._torch,
            lambda artefact: [model.version for model in self.pool.models_of(artefact.digest)],
        )  # fmt: skip
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._background.stop()
        await self._stack.aclose()
        await self._channels.close()
        self._threads.shutdown()

    async def stage(self, version: FunctionVersion) -> Record:
        artefact = await self.stager.stage(version.artefact_digest)
        await self.shelf.refresh(version, artefact)
        return artefact

    async def _nothing(self, artefact: Record) -> None:
        """There are no devices."""


@pytest.fixture
async def repository(nats_url: str, tmp_path: Path) -> AsyncIterator[tuple[str, RepositoryClient]]:
    config = ModelRepositoryConfig(nats=nats_url, spool_dir=str(tmp_path / "spool"), drain_s=1)
    async with running(ModelRepositoryApp(config)) as service:
        address = await service.ready()
        client = RepositoryClient(address)
        await until_health(client.channel, serving=True)
        yield address, client
        await client.close()


@pytest.fixture
def node(tmp_path: Path, repository: tuple[str, RepositoryClient]) -> Callable[..., Tiers]:
    def made(name: str, **settings: object) -> Tiers:
        (tmp_path / name).mkdir(exist_ok=True)
        return Tiers(tmp_path / name, repository[0], **settings)  # type: ignore[arg-type]

    return made


def version_of(artefact: Artefact, base: int = BASE, **spec: object) -> FunctionVersion:
    fields = {"name": "f", "execution": Execution.EXECUTION_ROUSE} | spec
    return FunctionVersion(
        version_id="f-1", artefact_digest=artefact.digest, spec=FunctionSpec(**fields),  # type: ignore[arg-type]
        addresses=AddressRange(base=base, weights_bytes=32 * MIB),
    )  # fmt: skip


async def publish(node: Tiers, version: FunctionVersion, name: str, data: bytes) -> None:
    path = node.folder / "recorded"
    path.write_bytes(data)
    await node.shelf.publish(version, await node.stage(version), TAPE, name, path)


async def test_what_one_node_made_another_one_has(
    node: Callable[..., Tiers], repository: tuple[str, RepositoryClient]
) -> None:
    artefact = await repository[1].deploy(MODEL)
    version = version_of(artefact)
    async with node("a") as a, node("b") as b:
        assert a.shelf.path(await a.stage(version)) is None
        await publish(a, version, "x:FP32[1]", b"tape one")
        await publish(a, version, "x:FP32[2]", b"tape two")
        record = await b.stage(version)
        held = {h.state.name: h.path.read_bytes() for h in b.shelf.of(version, record)}
        assert held == {"x:FP32[1]": b"tape one", "x:FP32[2]": b"tape two"}
        for tiers in (a, b):
            folder = tiers.shelf.path(await tiers.stage(version))
            assert folder is not None
            assert sorted(p.name for p in folder.iterdir()) == sorted(map(rules.file_name, record.states))
            assert not any(p.stat().st_mode & 0o222 for p in folder.iterdir())
        assert b.stager.disk_used_bytes == artefact.size_bytes + 16


async def test_states_hold_only_where_all_they_were_made_with_is_the_same(
    node: Callable[..., Tiers], repository: tuple[str, RepositoryClient]
) -> None:
    artefact = await repository[1].deploy(MODEL)
    version = version_of(artefact)
    async with node("a") as a, node("other", torch="2.11.0") as other, node("same") as same:
        await publish(a, version, "x", b"tape")
        assert other.shelf.of(version, await other.stage(version)) == []
        moved, plain = version_of(artefact, BASE + 32 * MIB), version_of(artefact, execution=Execution.EXECUTION_PLAIN)
        for wanted in (moved, plain):
            assert same.shelf.path(await same.stage(wanted)) is None
        options = version_of(artefact, options={"a": "1"})
        assert same.shelf.of(options, await same.stage(options)) == []
        assert len(same.shelf.of(version, await same.stage(version))) == 1


async def test_what_is_replaced_or_dropped_leaves_the_disk(
    node: Callable[..., Tiers], repository: tuple[str, RepositoryClient]
) -> None:
    client = repository[1]
    artefact = await client.deploy(MODEL)
    version = version_of(artefact)
    async with node("a") as a, node("b") as b:
        await publish(a, version, "x", b"before")
        await b.stage(version)
        await publish(a, version, "x", b"afterwards")
        record = await b.stage(version)
        assert [h.path.read_bytes() for h in b.shelf.of(version, record)] == [b"afterwards"]
        assert b.stager.disk_used_bytes == a.stager.disk_used_bytes == artefact.size_bytes + 10
        _, freed = await b.stager.drop(record, "the test says so")
        assert freed == artefact.size_bytes + 10
        assert b.stager.disk_used_bytes == 0
        assert not b.disk.states(artefact.digest).exists()
        await client.delete_states(artefact.digest)
        record = await a.stage(version)
        assert a.shelf.path(record) is None
        assert a.stager.disk_used_bytes == artefact.size_bytes


def serve(node: Tiers, version: FunctionVersion) -> None:
    """The node knows the version, as it does once an instance was to be started."""
    node.pool.models[version.version_id] = Model(version, node.stager.artefact(version.artefact_digest))


async def recovered(node: Tiers) -> list[tuple[FunctionVersion, list[bytes]]]:
    """What a node that has just started knows, without anybody's help, of versions and their tapes."""
    found = await node.shelf.recover(list(node.pool.artefacts.values()))
    of = node.stager.artefact
    return [(v, [path.read_bytes() for _, _, path in node.shelf.tapes(v, of(v.artefact_digest))]) for v in found]


async def test_a_node_that_restarts_knows_what_tapes_answer(
    node: Callable[..., Tiers], repository: tuple[str, RepositoryClient]
) -> None:
    client = repository[1]
    version, other = (
        version_of(await client.deploy(MODEL)),
        version_of(await client.deploy(MODEL | {"notes.txt": b"another one"})),
    )
    other.version_id = "g-1"
    async with node("a") as a:
        for each in (version, other):
            serve(a, each)
            await publish(a, each, TAPE_NAME, each.version_id.encode())
    async with node("a") as a:
        found = sorted(await recovered(a), key=lambda row: row[0].version_id)
        assert found == [(version, [b"f-1"]), (other, [b"g-1"])]
        assert a.shelf.tape_count(version, a.stager.artefact(version.artefact_digest)) == 1
        folders = [await a.shelf.candidates(each, a.stager.artefact(each.artefact_digest)) for each in (version, other)]
        assert len(set(folders)) == 2
        # What is dropped is not remembered; a version that was not told of is.
        await a.stager.drop(a.stager.artefact(other.artefact_digest), "the test says so")
        serve(a, version)
        second = FunctionVersion.FromString(version.SerializeToString())
        second.version_id = "f-2"
        serve(a, second)
        await a.stage(second)
    async with node("a") as a:
        assert sorted(v.version_id for v, _ in await recovered(a)) == ["f-1", "f-2"]
        assert [folder.exists() for folder in folders] == [True, False]
        # The second one is dropped.
        serve(a, version)
        artefact = a.stager.artefact(version.artefact_digest)
        (await a.shelf.candidates(second, artefact) / "1.candidate").touch()
        await a.shelf.dropped(second, artefact)
        assert not list(folders[0].parent.rglob("*.candidate"))
    async with node("a") as a:
        assert [v.version_id for v, _ in await recovered(a)] == ["f-1"]
    async with node("a", torch="2.11.0") as a:
        assert await recovered(a) == []
        assert not a.disk.states(version.artefact_digest).exists()


@pytest.mark.parametrize("damage", ["record", "record's end", "no record", "tape", "tape's end", "no tape", "place"])
async def test_what_is_not_what_was_written_down_is_not_recovered(
    node: Callable[..., Tiers], repository: tuple[str, RepositoryClient], damage: str
) -> None:
    version = version_of(await repository[1].deploy(MODEL))
    async with node("a") as a:
        serve(a, version)
        await publish(a, version, TAPE_NAME, b"a good tape")
        record = a.disk.record(version.artefact_digest)
        (tape,) = a.disk.states(version.artefact_digest).iterdir()
        path = tape if "tape" in damage else record
        path.chmod(0o600)
        data = path.read_bytes()
        if damage.startswith("no "):
            path.unlink()
        elif damage == "place":
            elsewhere = data.replace(version.artefact_digest.encode(), b"ab" * 32)
            path.write_bytes(hashlib.sha256(elsewhere[32:]).digest() + elsewhere[32:])
        elif damage.endswith("end"):
            path.write_bytes(data[:-1])
        else:
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    async with node("a") as a:
        assert await recovered(a) == []
        # With model-repository it is as ever.
        artefact = await a.stage(version)
        assert len(a.shelf.tapes(version, artefact)) == 1


async def test_states_survive_a_restart_of_the_node_and_those_of_nobody_do_not(
    node: Callable[..., Tiers], repository: tuple[str, RepositoryClient]
) -> None:
    artefact = await repository[1].deploy(MODEL)
    version = version_of(artefact)
    async with node("a") as a:
        await publish(a, version, "x", b"tape")
        (path,) = a.disk.states(artefact.digest).iterdir()
        inode = path.stat().st_ino
        stray = a.disk.states("ab" * 32)
        stray.mkdir()
    async with node("a") as a:
        assert not stray.exists()
        assert len(a.shelf.of(version, await a.stage(version))) == 1
        assert path.stat().st_ino == inode


async def test_without_states_staging_succeeds_all_the_same(
    node: Callable[..., Tiers], repository: tuple[str, RepositoryClient]
) -> None:
    client = repository[1]
    artefact = await client.deploy(MODEL)
    version = version_of(artefact)
    async with node("a") as a, node("small", cache_bytes=artefact.size_bytes + 4) as small:
        await publish(a, version, "x", b"too large for the other")
        record = await small.stage(version)
        assert small.shelf.path(record) is None
        assert small.stager.disk_used_bytes == artefact.size_bytes


async def test_what_cannot_be_kept_is_said_and_leaves_nothing(
    node: Callable[..., Tiers], repository: tuple[str, RepositoryClient]
) -> None:
    artefact = await repository[1].deploy(MODEL)
    version = version_of(artefact)
    async with node("a") as a:
        await a.stage(version)
        with pytest.raises(RouseError) as caught:
            await publish(a, version, "a name with spaces", b"x")
        assert caught.value.reason == "BAD_STATE"
        message = (await a.stage(version)).message
        assert message is not None
        message.layout.tensors[0].image_offset_bytes += 64
        with pytest.raises(FailedPrecondition) as refused:
            await publish(a, version, "x", b"x")
        assert refused.value.reason == "LAYOUT_MISMATCH"
        assert not a.disk.states(artefact.digest).exists()


def test_the_version_of_pytorch_is_known_without_importing_it() -> None:
    import torch

    assert torch_version() == rules.torch_version(torch.__version__)
