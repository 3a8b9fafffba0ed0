"""What instances recorded becomes tapes: once, as soon as a session has verified them, and never twice the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rouse_common.clock import SystemClock
from rouse_common.errors import Unavailable
from rouse_contracts import core, tapes
from rouse_contracts import device as contract
from rouse_contracts.functions import Execution, FunctionSpec, FunctionVersion
from rouse_gpu_server.logic import recordings
from rouse_gpu_server.logic.recordings import Recordings
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.state.records import Executor, Model, Phase

SIGNATURE = "5" * 32


class Around:
    """An instance, its executor and the node's shelf."""

    enabled = True

    def __init__(self) -> None:
        self.requests, self.refused = 0, ""
        # What the session has verified.
        self.files: list[str] = []
        self.asked: asyncio.Queue[int] = asyncio.Queue()
        self.saves = self.refreshed = 0
        self.published: list[tuple[str, bytes]] = []
        self.fails = False

    async def recordings(self, address: str, timeout_s: float) -> contract.ListRecordingsResponse:
        self.asked.put_nowait(self.requests)
        if self.fails:
            raise Unavailable("UNAVAILABLE", "nobody there")
        kind = contract.Recording(
            signature=SIGNATURE, requests=self.requests, output_names=["y"],
            inputs=[core.TapeTensor(name="x", datatype="FP32", shape=[2])],
        )  # fmt: skip
        return contract.ListRecordingsResponse(recordings=[kind] if self.requests else [], refused=self.refused)

    async def save_tapes(self, instance_id: str, folder: Path) -> core.SaveTapesResponse:
        self.saves += 1
        for name in self.files:
            (folder / name).write_text(name)
        found = [core.RecordedTape(signature=SIGNATURE, path=str(folder / name)) for name in self.files]
        return core.SaveTapesResponse(tapes=found)

    async def refresh_tapes(self, model: Model) -> None:
        self.refreshed += 1

    def tapes(self, version: FunctionVersion, artefact: Any) -> list[tuple[str, tapes.Answers | None, Path]]:
        return [(name, tapes.parse(name), Path(name)) for name, _ in self.published]

    async def publish(self, version: Any, artefact: Any, kind: Any, name: str, path: Path) -> None:
        self.published.append((name, await asyncio.to_thread(path.read_bytes)))


def function(**fields: Any) -> Model:
    spec = FunctionSpec(name="f", execution=Execution.EXECUTION_ROUSE, **fields)
    artefact: Any = None
    return Model(FunctionVersion(version_id="v", spec=spec), artefact)


def instance(attachment_id: str = "a1") -> Executor:
    return Executor("i1", "v", "unix:i1", 1, phase=Phase.ATTACHED, attachment_id=attachment_id)


@asynccontextmanager
async def recording(around: Around, folder: Path) -> AsyncIterator[Recordings]:
    (folder / ".x").mkdir()
    double: Any = around
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        background = Background(group)
        yield Recordings(double, double, double, double, background, SystemClock(), folder)
        background.stop()


async def told(made: Recordings, executor: Executor, model: Model, around: Around) -> None:
    """Executed, and looked at."""
    made.executed(executor, model)
    await around.asked.get()
    while (task := made._seen["i1"].task) is not None:
        await asyncio.wait([task])


async def test_what_a_session_has_verified_becomes_a_tape_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(recordings, "FIRST_S", 0.001)
    around, executor, model = Around(), instance(), function()
    double: Any = {"i1": executor}
    around.executors = double  # type: ignore[attr-defined]
    async with recording(around, tmp_path) as made:
        around.requests, around.refused = 1, "the one before was not"
        await told(made, executor, model, around)
        assert (around.published, model.eager_reason) == ([], "the one before was not")
        around.requests, around.files = 2, ["0.tape"]
        await told(made, executor, model, around)
        assert around.published == [("x:FP32:2;>y;#0", b"0.tape")]
        assert around.refreshed == 1
        await told(made, executor, model, around)
        assert around.saves == 2, "nothing new since"
        # Values led another way: a second tape of the same inputs, and the first is not kept again.
        around.requests, around.files = 4, ["0.tape", "1.tape"]
        await told(made, executor, model, around)
        assert [name for name, _ in around.published] == ["x:FP32:2;>y;#0", "x:FP32:2;>y;#1"]
        # Another session: what it records is what those do not answer. Its first request may be the second of two.
        executor.attachment_id, around.files, around.requests = "a2", ["0.tape"], 1
        await told(made, executor, model, around)
        assert around.published[2:] == [("x:FP32:2;>y;#2", b"0.tape")]
        assert not list((tmp_path / ".x").iterdir())


async def test_an_instance_that_does_not_answer_costs_its_tapes_only(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(recordings, "FIRST_S", 0.001)
    around, executor, model = Around(), instance(), function()
    double: Any = {"i1": executor}
    around.executors = double  # type: ignore[attr-defined]
    async with recording(around, tmp_path) as made:
        around.requests, around.fails, around.files = 2, True, ["0.tape"]
        await told(made, executor, model, around)
        around.fails = False
        await told(made, executor, model, around)
        assert len(around.published) == 1


async def test_functions_without_tapes_are_not_asked(tmp_path: Path) -> None:
    around = Around()
    async with recording(around, tmp_path) as made:
        for model in (function(tapes=False), function(decoupled=True)):
            made.executed(instance(), model)
        assert not made._seen
