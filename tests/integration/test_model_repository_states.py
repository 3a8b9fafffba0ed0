"""Materialised states beside their artefacts: recorded, refused, replaced, gone with them. Over a real JetStream."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rouse_bus import Bus
from rouse_bus.objects import ObjectStore
from rouse_common.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, RouseError
from rouse_contracts import states as rules
from rouse_contracts.repository import Artefact, MadeWith, State, StateKind
from rouse_model_repository.app import ModelRepositoryApp
from rouse_model_repository.config import ModelRepositoryConfig
from rouse_testkit.repository_client import MODEL, PACKAGE, RepositoryClient, sha256, until_health
from rouse_testkit.running import running

PROGRAM = sha256(b"program")
BASE = 0x5000_0000_0000


@pytest.fixture
def config(nats_url: str, tmp_path: Path) -> ModelRepositoryConfig:
    return ModelRepositoryConfig(nats=nats_url, spool_dir=str(tmp_path / "spool"), max_blob_mib=256, drain_s=1)


@pytest.fixture
async def client(config: ModelRepositoryConfig) -> AsyncIterator[RepositoryClient]:
    async with running(ModelRepositoryApp(config)) as service:
        client = RepositoryClient(await service.ready())
        await until_health(client.channel, serving=True)
        yield client
        await client.close()


def state(artefact: Artefact, data: bytes, name: str = "x:FP32[1,3]", **fields: Any) -> State:
    """A tape; `fields` are of State or of MadeWith."""
    made: dict[str, Any] = {
        "torch_version": "2.13.0", "device_type": "host", "layout_digest": rules.layout_digest(artefact.layout),
        "program_digest": PROGRAM, "base": BASE,
    }  # fmt: skip
    own: dict[str, Any] = {"kind": StateKind.STATE_KIND_TAPE, "digest": sha256(data), "size_bytes": len(data)}
    made |= {key: fields.pop(key) for key in list(fields) if key in made}
    return State(artefact_digest=artefact.digest, name=name, made_with=MadeWith(**made), **(own | fields))


async def refused(action: Any, kind: type[RouseError], reason: str) -> RouseError:
    with pytest.raises(kind) as caught:
        await action
    assert caught.value.reason == reason
    return caught.value


async def test_a_state_is_kept_and_told_to_those_it_holds_for(client: RepositoryClient) -> None:
    artefact, other = await client.deploy(MODEL), await client.deploy(PACKAGE)
    first = await client.put_state(state(artefact, b"first tape"), b"first tape")
    assert first.created_at.seconds > 0
    second = await client.put_state(state(artefact, b"for cuda", device_type="cuda"), b"for cuda")
    learnt = state(artefact, b"learnt", "all", kind=StateKind.STATE_KIND_TEMPLATES, torch_version="2.11.0")
    learnt = await client.put_state(learnt, b"learnt")
    assert await client.states(artefact.digest) == (first, second, learnt)
    assert await client.states(artefact.digest, device_type="host") == (first, learnt)
    assert await client.states(artefact.digest, device_type="host", torch_version="2.13.0", base=BASE) == (first,)
    assert await client.states(artefact.digest, base=BASE + 1) == ()
    assert await client.states(other.digest) == ()
    assert await client.get(first.digest) == b"first tape"


async def test_a_state_of_the_same_identity_replaces_the_one_before(client: RepositoryClient) -> None:
    artefact = await client.deploy(MODEL)
    await client.put_state(state(artefact, b"old"), b"old")
    new = await client.put_state(state(artefact, b"new"), b"new")
    again = await client.put_state(state(artefact, b"new"), b"new")
    assert (again.digest, again.name) == (new.digest, new.name)
    assert await client.states(artefact.digest) == (again,)
    assert await client.missing([sha256(b"old"), sha256(b"new")]) == [sha256(b"old")]


async def test_states_go_with_their_artefact_and_on_demand(client: RepositoryClient) -> None:
    before = (await client.list()).stored_bytes
    artefact = await client.deploy(MODEL)
    for device_type in rules.DEVICE_TYPES:
        data = device_type.encode() * 100
        await client.put_state(state(artefact, data, device_type=device_type), data)
    assert await client.delete_states(artefact.digest, device_type="cuda") == 400
    assert [found.made_with.device_type for found in await client.states(artefact.digest)] == ["host"]
    assert await client.delete(artefact.digest) == artefact.size_bytes + 400
    assert (await client.list()).stored_bytes == before
    await refused(client.states(artefact.digest), NotFound, "ARTEFACT_NOT_FOUND")
    await client.deploy(MODEL)
    assert await client.states(artefact.digest) == ()


async def test_bytes_that_are_a_file_and_a_state_stay_while_either_names_them(client: RepositoryClient) -> None:
    artefact = await client.deploy(MODEL)
    config = MODEL["config.json"]
    await client.put_state(state(artefact, config), config)
    assert await client.delete_states(artefact.digest) == 0
    assert await client.get(sha256(config)) == config


async def test_what_cannot_be_kept_is_refused(client: RepositoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    artefact = await client.deploy(MODEL)
    await refused(client.put_state(state(artefact, b"x"), None), FailedPrecondition, "BLOB_MISSING")
    nobody = Artefact(digest=sha256(b"nobody"), layout=artefact.layout)
    await refused(client.put_state(state(nobody, b"x"), b"x"), NotFound, "ARTEFACT_NOT_FOUND")
    error = await refused(
        client.put_state(state(artefact, b"x", layout_digest=sha256(b"other")), b"x"),
        FailedPrecondition, "LAYOUT_MISMATCH",
    )  # fmt: skip
    assert rules.layout_digest(artefact.layout) in error.message
    for fields in (
        {"kind": 0}, {"kind": 77}, {"name": ""}, {"name": "a b"}, {"name": "x" * 257}, {"name": "é"}, {"size_bytes": 2},
        {"size_bytes": 0}, {"torch_version": ""}, {"torch_version": "2.13.0+cpu"}, {"device_type": "tpu"},
        {"program_digest": "x"}, {"layout_digest": ""},
    ):  # fmt: skip
        await refused(client.put_state(state(artefact, b"x", **fields), b"x"), InvalidArgument, "BAD_STATE")
    await refused(client.put_state(state(artefact, b"x", digest="../x"), b"x"), InvalidArgument, "BAD_DIGEST")
    large = state(artefact, b"x", size_bytes=rules.MAX_STATE_BYTES + 1)
    await refused(client.put_state(large, b"x"), ResourceExhausted, "STATE_TOO_LARGE")
    code = pickle.dumps({"a": [1]}, protocol=2)
    await refused(client.put_state(state(artefact, code), code), InvalidArgument, "PICKLE_REFUSED")
    assert await client.states(artefact.digest) == ()


async def test_an_artefact_keeps_the_newest_states(client: RepositoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_STATES", 3)
    monkeypatch.setattr(rules, "MAX_TOTAL_BYTES", 100)
    artefact = await client.deploy(MODEL)
    for number in range(5):
        data = bytes([number])
        await client.put_state(state(artefact, data, f"s{number}"), data)
    assert [found.name for found in await client.states(artefact.digest)] == ["s2", "s3", "s4"]
    await client.put_state(state(artefact, b"y" * 99, "large"), b"y" * 99)
    assert [found.name for found in await client.states(artefact.digest)] == ["s4", "large"]
    assert await client.missing([sha256(bytes([number])) for number in range(5)]) == [
        sha256(bytes([number])) for number in range(4)
    ]


async def test_states_recorded_at_once_are_all_there(client: RepositoryClient) -> None:
    artefact = await client.deploy(MODEL)
    names = [f"s{number}" for number in range(16)]
    await asyncio.gather(*(client.put_state(state(artefact, name.encode(), name), name.encode()) for name in names))
    assert sorted(found.name for found in await client.states(artefact.digest)) == sorted(names)


async def test_states_are_there_after_a_restart_and_orphans_are_not(
    config: ModelRepositoryConfig, nats_url: str
) -> None:
    async with running(ModelRepositoryApp(config)) as service:
        client = RepositoryClient(await service.ready())
        await until_health(client.channel, serving=True)
        artefact = await client.deploy(MODEL)
        kept = await client.put_state(state(artefact, b"kept"), b"kept")
        gone = await client.deploy(PACKAGE)
        await client.put_state(state(gone, b"orphan"), b"orphan")
        await client.close()
    bus = Bus.open(nats_url, "test")
    await bus.wait_connected()
    objects = ObjectStore(bus, "artefacts")
    # As if its deletion had been cut short by a crash.
    await objects.delete(f"records/{gone.digest}")
    async with running(ModelRepositoryApp(config)) as service:
        client = RepositoryClient(await service.ready())
        await until_health(client.channel, serving=True)
        assert await client.states(artefact.digest) == (kept,)
        assert await client.get(kept.digest) == b"kept"
        assert [info.name for info in await objects.list() if info.name.startswith("states/")] == [
            f"states/{artefact.digest}"
        ]
        await client.close()
    await bus.close()
