"""Which instance computes through which executor: mapped once, unmapped with the last, forgotten with the executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rouse_common.errors import Unavailable, Unimplemented
from rouse_contracts.functions import AddressRange, Execution, FunctionSpec, FunctionVersion
from rouse_gpu_server.backends import Segment
from rouse_gpu_server.logic.sessions import Sessions


class CoreDouble:
    """What a device's executor was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.failure: Unavailable | None = None

    def _note(self, what: str, whom: str) -> None:
        self.calls.append((what, whom))
        if self.failure is not None:
            raise self.failure

    async def map_model(self, version_id: str, attachment_id: str, base: int, size_bytes: int, image: Path) -> None:
        self._note("map", version_id)

    async def unmap_model(self, version_id: str) -> None:
        self._note("unmap", version_id)

    async def open_session(self, session_id: str, version_id: str, socket: Path, user: int) -> None:
        assert len(str(socket)) < 108
        self._note("open", session_id)

    async def close_session(self, session_id: str) -> None:
        self._note("close", session_id)


class Thing:
    """Attributes, as of the records that Sessions reads."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__ |= fields


def model(execution: Execution = Execution.EXECUTION_ROUSE) -> Any:
    version = FunctionVersion(
        version_id="v" * 64, spec=FunctionSpec(name="f", execution=execution), addresses=AddressRange(base=1 << 40)
    )
    return Thing(version=version, version_id=version.version_id, function="f", artefact=Thing(image_bytes=5))


def instance(name: str) -> Any:
    return Thing(instance_id=name, pid=1)


RESIDENT: Any = Thing(device=Thing(name="d0"), segment=Segment(Path("image"), 5))


async def test_a_version_is_mapped_once_and_unmapped_with_its_last_session(tmp_path: Path) -> None:
    core, sessions = CoreDouble(), Sessions(tmp_path)
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": core})
    first = await sessions.open(instance("i1"), model(), RESIDENT, "a1")
    second = await sessions.open(instance("i2"), model(), RESIDENT, "a2")
    assert first != second
    await sessions.close("i1")
    await sessions.close("i1")
    await sessions.close("i2")
    v = "v" * 64
    assert core.calls == [
        ("unmap", v), ("map", v), ("open", "i1"), ("open", "i2"), ("close", "i1"), ("close", "i2"), ("unmap", v),
    ]  # fmt: skip


async def test_sessions_of_an_executor_that_ended_are_over(tmp_path: Path) -> None:
    core, sessions = CoreDouble(), Sessions(tmp_path)
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": core})
    await sessions.open(instance("i1"), model(), RESIDENT, "a1")
    assert sessions.lost("other") == []
    assert sessions.lost("d0") == ["i1"]
    core.calls.clear()
    await sessions.close("i1")
    assert core.calls == []
    await sessions.open(instance("i1"), model(), RESIDENT, "a2")
    assert [what for what, _ in core.calls] == ["unmap", "map", "open"]


async def test_what_cannot_be_closed_is_forgotten_all_the_same(tmp_path: Path) -> None:
    core, sessions = CoreDouble(), Sessions(tmp_path)
    (tmp_path / ".x").mkdir()
    sessions.start({"d0": core})
    await sessions.open(instance("i1"), model(), RESIDENT, "a1")
    core.failure = Unavailable("LINK_LOST", "it is gone")
    await sessions.close("i1")
    assert sessions.lost("d0") == []


async def test_without_an_executor_a_redirected_version_cannot_be_attached(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path)
    assert sessions.wanted(model(), RESIDENT)
    assert not sessions.wanted(model(Execution.EXECUTION_PLAIN), RESIDENT)
    assert not sessions.wanted(model(), None)
    with pytest.raises(Unimplemented) as caught:
        await sessions.open(instance("i1"), model(), RESIDENT, "a1")
    assert caught.value.reason == "EXECUTION_UNAVAILABLE"
