"""Which instance computes through which executor: mapped once, unmapped with the last, forgotten with the executor."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from rouse_common.errors import FailedPrecondition, Unavailable, Unimplemented
from rouse_contracts import core, tapes
from rouse_contracts.functions import (
    EXECUTOR_ISOLATION_ISOLATED,
    AddressRange,
    Execution,
    FunctionSpec,
    FunctionVersion,
)
from rouse_gpu_server.backends import Segment
from rouse_gpu_server.logic.sessions import AT_ONCE, Sessions


class CoreDouble:
    """What a device's executor was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.failure: Unavailable | None = None
        self.link, self.recording = "unix:core", False
        self.served = False
        self.orders: list[Path | None] = []
        self.attachments: list[str] = []
        self.limits: dict[str, int] = {}

    def _note(self, what: str, whom: str) -> None:
        self.calls.append((what, whom))
        if self.failure is not None:
            raise self.failure

    async def serving(self) -> None:
        self.served = True

    async def map_model(
        self,
        version_id: str,
        attachment_id: str,
        base: int,
        size_bytes: int,
        image: Path,
        layout: str,
        order: Path | None,
        working_bytes: int,
    ) -> None:
        assert self.served
        self.limits["map"] = working_bytes
        self._note("map", version_id)
        self.attachments.append(attachment_id)
        self.orders.append(order)

    async def unmap_model(self, version_id: str) -> None:
        assert self.served
        self._note("unmap", version_id)

    async def open_session(
        self, session_id: str, version_id: str, socket: Path, user: int, *, candidates: Path | None, working_bytes: int
    ) -> None:
        assert len(str(socket)) < 108
        self.recording = candidates is not None
        self.limits["open"] = working_bytes
        self._note("open", session_id)

    async def close_session(self, session_id: str) -> None:
        self._note("close", session_id)

    async def save_tapes(self, session_id: str, folder: Path) -> core.SaveTapesResponse:
        self._note("save", session_id)
        return core.SaveTapesResponse()

    async def working(self) -> dict[str, int]:
        return {"v" * 64: 11}

    async def load_tape(self, version_id: str, tape: core.TapeFile) -> None:
        if "bad" in tape.path:
            raise FailedPrecondition("TAPE_MISMATCH", "of another layout")
        self._note("load", tape.path)


class OwnDouble:
    """Executors that isolated versions were given, by device and version."""

    def __init__(self) -> None:
        self.cores: dict[tuple[str, str], CoreDouble] = {}

    def start(self, device: str, version_id: str) -> CoreDouble:
        assert (device, version_id) not in self.cores
        core = self.cores[device, version_id] = CoreDouble()
        core.link = f"unix:own-{len(self.cores)}"
        return core

    async def end(self, device: str, version_id: str) -> None:
        del self.cores[device, version_id]

    async def forget(self, version_id: str) -> None:
        self.forgotten = version_id


class ShelfDouble:
    """The node's tapes of every version."""

    def __init__(self, **names: str) -> None:
        self.names = names

    def tapes(self, version: FunctionVersion, artefact: Any) -> list[tuple[str, tapes.Answers, Path]]:
        found = [(name, tapes.parse(name), path) for path, name in self.names.items()]
        return [(name, answers, Path(path)) for name, answers, path in found if answers is not None]

    async def candidates(self, version: FunctionVersion, artefact: Any) -> Path:
        return Path("candidates")


class BackgroundDouble:
    """Keeps what is started, for the test to await."""

    def __init__(self) -> None:
        self.started: list[Coroutine[Any, Any, None]] = []

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.started.append(work)


BACKGROUND: Any = BackgroundDouble()


def sessions_of(folder: Path, **names: str) -> Sessions:
    shelf: Any = ShelfDouble(**names)
    return Sessions(folder, shelf, BACKGROUND)


class Thing:
    """Attributes, as of the records that Sessions reads."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__ |= fields


def model(execution: Execution = Execution.EXECUTION_ROUSE) -> Any:
    version = FunctionVersion(
        version_id="v" * 64, spec=FunctionSpec(name="f", execution=execution), addresses=AddressRange(base=1 << 40)
    )
    return Thing(
        version=version, version_id=version.version_id, function="f", artefact=Thing(image_bytes=5, message=None),
        declared_bytes=7,
    )  # fmt: skip


def instance(name: str) -> Any:
    return Thing(instance_id=name, pid=1)


def on_device(version: Any) -> Any:
    return Thing(device=Thing(name="d0"), segment=Segment(Path("image"), 5, in_core=True), model=version)


RESIDENT = on_device(model())


async def test_a_version_is_mapped_as_long_as_it_is_on_the_device(tmp_path: Path) -> None:
    native, sessions = CoreDouble(), sessions_of(tmp_path)
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": native}, OwnDouble(), ["d0"])
    assert sessions.in_core(RESIDENT.model)
    await sessions.bring(RESIDENT, "")
    await sessions.bring(RESIDENT, "")
    first = await sessions.open(instance("i1"), RESIDENT)
    second = await sessions.open(instance("i2"), RESIDENT)
    assert first != second
    await sessions.close("i1")
    await sessions.close("i1")
    await sessions.close("i2")
    await sessions.unmap(RESIDENT)
    await sessions.unmap(RESIDENT)
    v = "v" * 64
    assert native.calls == [
        ("unmap", v), ("map", v), ("open", "i1"), ("open", "i2"), ("close", "i1"), ("close", "i2"), ("unmap", v),
    ]  # fmt: skip


async def test_what_a_function_declares_is_the_limit_of_its_sessions_and_replays(tmp_path: Path) -> None:
    native, sessions = CoreDouble(), sessions_of(tmp_path)
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": native}, OwnDouble(), ["d0"])
    assert await sessions.working(sessions.executor_of(RESIDENT)) == {}
    await sessions.open(instance("i1"), RESIDENT)
    assert native.limits == {"map": 7, "open": 7}
    assert await sessions.working(sessions.executor_of(RESIDENT)) == {"v" * 64: 11}


async def test_sessions_of_an_executor_that_ended_are_over(tmp_path: Path) -> None:
    native, sessions = CoreDouble(), sessions_of(tmp_path)
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": native}, OwnDouble(), ["d0"])
    await sessions.open(instance("i1"), RESIDENT)
    assert sessions.lost("other") == []
    assert sessions.lost("d0") == ["i1"]
    native.calls.clear()
    await sessions.close("i1")
    assert native.calls == []
    await sessions.open(instance("i1"), RESIDENT)
    assert [what for what, _ in native.calls] == ["unmap", "map", "open"]


async def test_what_cannot_be_closed_is_forgotten_all_the_same(tmp_path: Path) -> None:
    native, sessions = CoreDouble(), sessions_of(tmp_path)
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": native}, OwnDouble(), ["d0"])
    await sessions.open(instance("i1"), RESIDENT)
    native.failure = Unavailable("LINK_LOST", "it is gone")
    await sessions.close("i1")
    assert sessions.lost("d0") == []


async def test_without_an_executor_a_redirected_version_cannot_be_attached(tmp_path: Path) -> None:
    sessions = sessions_of(tmp_path)
    assert sessions.wanted(model(), RESIDENT)
    assert not sessions.wanted(model(Execution.EXECUTION_PLAIN), RESIDENT)
    assert not sessions.wanted(model(), None)
    with pytest.raises(Unimplemented) as caught:
        await sessions.open(instance("i1"), RESIDENT)
    assert caught.value.reason == "EXECUTION_UNAVAILABLE"


X, Y = "x:FP32:2,3;>y;#0", "x:FP32:4,3;>y;#0"


def lease(version: Any) -> Any:
    return Thing(device_name="d0", model=version, lease_id="a2/7")


async def test_a_mapped_version_gets_the_node_s_tapes_and_new_ones(tmp_path: Path) -> None:
    native, sessions, one = CoreDouble(), sessions_of(tmp_path, first=X, bad="x:FP32:9;>y;#0"), model()
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": native}, OwnDouble(), ["d0"])
    assert sessions.access(lease(one)) is None
    await sessions.open(instance("i1"), on_device(one))
    assert native.recording
    assert native.calls[-2:] == [("load", "first"), ("open", "i1")]
    assert native.orders == [Path("first")]
    access = sessions.access(lease(one))
    assert access is not None
    # Of the mapping's own attachment, whichever instance the lease is for; without the tape that was refused.
    assert (access.link, access.lease_id, list(access.keys)) == (
        "unix:core",
        f"{native.attachments[-1]}/7",
        ["x:FP32:2,3;"],
    )
    shelf: Any = sessions._shelf
    shelf.names["second"] = Y
    native.calls.clear()
    await sessions.refresh_tapes(one)
    assert native.calls == [("load", "second")]
    fresh = sessions.access(lease(one))
    assert fresh is not None
    assert list(fresh.keys) == ["x:FP32:2,3;", "x:FP32:4,3;"]
    # It stays mapped with the resident, without an instance.
    await sessions.close("i1")
    assert sessions.access(lease(one)) is not None
    await sessions.unmap(RESIDENT)
    assert native.calls[-2:] == [("close", "i1"), ("unmap", one.version_id)]
    assert sessions.access(lease(one)) is None


async def test_without_an_instance_a_version_is_mapped_for_the_tapes_that_are_asked_for(tmp_path: Path) -> None:
    names = {f"t{i}": f"x:FP32:{i + 1};>y;#0" for i in range(2 * AT_ONCE)}
    native, sessions, one = CoreDouble(), sessions_of(tmp_path, **names, bad="x:FP32:99;>y;#0"), model()
    key, wanted = f"x:FP32:{2 * AT_ONCE};", f"t{2 * AT_ONCE - 1}"
    assert not sessions.answers(one, key), "there is no executor"
    sessions.start({"d0": native}, OwnDouble(), ["d0"])
    assert sessions.answers(one, key)
    assert not sessions.answers(one, "x:FP32:1000;")
    assert not sessions.mapped_with(RESIDENT, key)
    await sessions.map_tapes(on_device(one), key)
    assert [what for what, _ in native.calls[:2]] == ["unmap", "map"]
    assert native.calls[2] == ("load", wanted)
    assert native.orders == [Path(wanted)], "what this request needs first comes first"
    assert sessions.mapped_with(RESIDENT, key)
    assert sessions.answers(one, key)
    # The others follow, and nothing is loaded twice.
    await BACKGROUND.started.pop()
    await sessions.map_tapes(on_device(one), key)
    assert len([1 for what, _ in native.calls if what == "load"]) == len(names)
    with pytest.raises(Unavailable) as caught:
        await sessions.map_tapes(on_device(one), "x:FP32:99;")
    assert caught.value.reason == "NO_TAPE"
    one.version.spec.tapes = False
    assert not sessions.answers(one, key)


async def test_what_was_given_up_is_unmapped_unless_an_instance_computes_there(tmp_path: Path) -> None:
    native, sessions, one = CoreDouble(), sessions_of(tmp_path, first=X), model()
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": native}, OwnDouble(), ["d0"])
    await sessions.map_tapes(on_device(one), "x:FP32:2,3;")
    await sessions.open(instance("i1"), on_device(one))
    assert [what for what, _ in native.calls].count("map") == 1
    native.calls.clear()
    await sessions.unmap(RESIDENT, unless_open=True)
    assert native.calls == []
    await sessions.close("i1")
    native.failure = Unavailable("LINK_LOST", "it is gone")
    await sessions.unmap(RESIDENT, unless_open=True)
    assert native.calls == [("close", "i1"), ("unmap", one.version_id)]
    assert sessions.access(lease(one)) is None


async def test_an_attachment_waits_for_a_few_tapes_only(tmp_path: Path) -> None:
    names = {f"t{i}": f"x:FP32:{i + 1};>y;#0" for i in range(3 * AT_ONCE)}
    native, sessions, one = CoreDouble(), sessions_of(tmp_path, **names), model()
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": native}, OwnDouble(), ["d0"])
    await sessions.open(instance("i1"), on_device(one))
    assert [what for what, _ in native.calls].count("load") == AT_ONCE
    await BACKGROUND.started.pop()
    assert [whom for what, whom in native.calls if what == "load"] == list(names)
    # Once it is not mapped any more nothing is loaded.
    await sessions.unmap(RESIDENT)
    native.calls.clear()
    await sessions.refresh_tapes(one)
    assert not native.calls


async def test_tapes_of_an_executor_that_ended_are_loaded_anew(tmp_path: Path) -> None:
    native, sessions, one = CoreDouble(), sessions_of(tmp_path, first=X), model()
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": native}, OwnDouble(), ["d0"])
    await sessions.open(instance("i1"), on_device(one))
    sessions.lost("d0")
    assert sessions.access(lease(one)) is None
    native.calls.clear()
    await sessions.open(instance("i1"), on_device(one))
    assert ("load", "first") in native.calls


async def test_what_the_manifest_keeps_from_tapes_is_not_recorded(tmp_path: Path) -> None:
    native, sessions, one = CoreDouble(), sessions_of(tmp_path), model()
    one.version.spec.tapes = False
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": native}, OwnDouble(), ["d0"])
    await sessions.open(instance("i1"), on_device(one))
    assert not native.recording


def isolated(version_id: str) -> Any:
    made = model()
    made.version.version_id = made.version_id = version_id
    made.version.spec.isolation = EXECUTOR_ISOLATION_ISOLATED
    return made


async def test_an_isolated_version_has_an_executor_of_its_own_while_it_is_mapped(tmp_path: Path) -> None:
    shared, own, sessions = CoreDouble(), OwnDouble(), sessions_of(tmp_path, first=X)
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": shared}, own, ["d0"])
    one, other = isolated("one"), isolated("other")
    where = {each: on_device(each) for each in (one, other)}
    await sessions.open(instance("i1"), where[one])
    await sessions.map_tapes(where[other], "x:FP32:2,3;")
    mine = own.cores["d0", "one"]
    assert [what for what, _ in mine.calls] == ["map", "load", "open"]
    assert [what for what, _ in own.cores["d0", "other"].calls] == ["map", "load"]
    access = sessions.access(lease(one))
    assert access is not None
    assert access.link == mine.link
    # The death of the shared one, or of another's, is none of its own.
    assert sessions.lost("d0") == []
    assert sessions.lost("d0", "other") == []
    assert not sessions.mapped_with(where[other], "x:FP32:2,3;")
    assert sessions.mapped_with(where[one], "x:FP32:2,3;")
    assert sessions.lost("d0", "one") == ["i1"]
    await sessions.open(instance("i1"), where[one])
    assert own.cores["d0", "one"] is mine
    await sessions.close("i1")
    for each in (one, other):
        await sessions.unmap(where[each])
    assert not own.cores
    assert shared.calls == []


async def test_an_executor_of_its_own_ends_even_where_nothing_could_be_mapped(tmp_path: Path) -> None:
    own, sessions, one = OwnDouble(), sessions_of(tmp_path), isolated("one")
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": CoreDouble()}, own, ["d0"])
    resident = on_device(one)
    core = own.start("d0", "one")
    core.failure = Unavailable("EXECUTOR_DOWN", "it does not start")
    own.start = lambda device, version_id: core  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await sessions.open(instance("i1"), resident)
    await sessions.unmap(resident)
    assert not own.cores
