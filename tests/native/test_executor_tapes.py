"""Tapes that rouse-executor records from one session and replays without any, bit by bit as PyTorch computes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import rouse_native
from rouse_common.errors import FailedPrecondition, InvalidArgument, RouseError
from rouse_common.link import Links
from rouse_contracts import core, device, functions
from rouse_native.executor import ExecutorClient, ExecutorProcess, ExecutorSettings
from rouse_native.session import Session
from rouse_testkit.compute import STAND_IN, stand_in_executor
from rouse_testkit.fetching import Unobtainable
from rouse_testkit.wire import Layers, data

pytestmark = pytest.mark.skipif(not rouse_native.built(), reason="the native core is not built here")

SECONDS = 30.0
BASE = 0x5000_0000_0000
LAYERS = Layers(4, 32, BASE)
SIZE = LAYERS.count * LAYERS.matrix_bytes


def request(values: bytes, lease: str = "at/1", name: str = "x", width: int = LAYERS.width) -> device.ExecuteRequest:
    batch = functions.TensorBatch(tensors=[functions.Tensor(name=name, datatype="FP32", shape=[1, width], data=values)])
    return device.ExecuteRequest(lease_id=lease, request_id="r", inputs=batch.SerializeToString())


def compute(session: Session, number: int, values: bytes, layers: Layers = LAYERS) -> bytes:
    """One eager request through the ring."""
    for message in layers.request(number, values):
        session.send(message, SECONDS)
    result = data(session.receive(SECONDS))
    session.send(layers.done(), SECONDS)
    return result


async def record(
    process: ExecutorProcess,
    folder: Path,
    values: list[bytes],
    layers: Layers = LAYERS,
    candidates: Path | None = None,
) -> tuple[list[bytes], list[str]]:
    """Requests through a session that records; their results and the files of its tapes."""
    await process.client.open_session("s", folder / "s", SECONDS, version_id="v", record=True, candidates=candidates)
    session = await asyncio.to_thread(Session, folder / "s", SECONDS)

    def work() -> list[bytes]:
        for message in layers.setup():
            session.send(message, SECONDS)
        return [compute(session, number, each, layers) for number, each in enumerate(values)]

    results = await asyncio.to_thread(work)
    saved = await process.client.save_tapes("s", folder, SECONDS)
    assert not saved.refused, saved
    await process.client.close_session("s", SECONDS)
    return results, [tape.path for tape in saved.tapes]


async def test_another_executor_replays_what_one_recorded(tmp_path: Path, short_folder: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    weights = [torch.randn(LAYERS.width, LAYERS.width) for _ in range(LAYERS.count)]
    rows = [torch.randn(1, LAYERS.width) for _ in range(3)]
    expected = []
    for row in rows:
        for matrix in weights:
            row = torch.tanh(torch.mm(row, matrix))
        expected.append(row.numpy().tobytes())
    image = tmp_path / "image"
    image.write_bytes(b"".join(matrix.numpy().tobytes() for matrix in weights))
    values = [row.numpy().tobytes() for row in rows]

    links = Links(64 << 20)
    (short_folder / "1").mkdir()
    (short_folder / "2").mkdir()
    flags: dict[str, int | str] = {"capacity-mib": 64}
    async with ExecutorProcess(ExecutorSettings("host:0", short_folder / "1", flags), links).running() as process:
        await process.serving(SECONDS)
        await process.client.map_model(
            "v", "at", base=BASE, size_bytes=SIZE, image=image, layout="l", timeout_s=SECONDS
        )
        results, paths = await record(process, short_folder / "1", values)
        assert results == expected
        assert len(paths) == 1

        files = [core.TapeFile(path=paths[0], inputs=[_input("x")], output_names=["y"])]
        async with ExecutorProcess(ExecutorSettings("host:1", short_folder / "2", flags), links).running() as other:
            await other.serving(SECONDS)
            client = other.client
            # Of another layout: its weights lie elsewhere.
            await client.map_model("w", "at", base=BASE, size_bytes=SIZE, image=image, layout="m", timeout_s=SECONDS)
            with pytest.raises(FailedPrecondition) as mismatch:
                await client.load_tapes("w", files, SECONDS)
            assert mismatch.value.reason == "TAPE_MISMATCH"
            await client.unmap_model("w", SECONDS)

            await client.map_model("v", "at", base=BASE, size_bytes=SIZE, image=image, layout="l", timeout_s=SECONDS)
            assert [tape.replays for tape in await client.load_tapes("v", files, SECONDS)] == [0]
            for number, each in enumerate([*values, *values]):
                answer = await client.execute(request(each), SECONDS)
                (output,) = functions.TensorBatch.FromString(answer.outputs).tensors
                assert (output.name, output.datatype, list(output.shape)) == ("y", "FP32", [1, LAYERS.width])
                assert output.data == expected[number % 3]
                assert answer.device_ms > 0
            (model,) = (await client.describe(SECONDS)).models
            assert [tape.replays for tape in model.tapes] == [6]

            await refused(client, values[0], image)
            await client.unmap_model("v", SECONDS)
            with pytest.raises(FailedPrecondition):
                await client.execute(request(values[0]), SECONDS)
    await links.close()


async def refused(client: ExecutorClient, values: bytes, no_tape: Path) -> None:
    with pytest.raises(FailedPrecondition) as none:
        await client.execute(request(values, name="z"), SECONDS)
    assert none.value.reason == "NO_TAPE"
    with pytest.raises(InvalidArgument):
        await client.execute(request(values[:-4]), SECONDS)
    with pytest.raises(FailedPrecondition) as stale:
        await client.execute(request(values, lease="other/1"), SECONDS)
    assert stale.value.reason == "STALE_LEASE"
    # What is no tape is refused, and what was there stays.
    with pytest.raises(RouseError):
        await client.load_tapes("v", [core.TapeFile(path=str(no_tape), inputs=[_input("x")])], SECONDS)
    await client.execute(request(values), SECONDS)


async def test_two_requests_of_two_sessions_make_a_tape(tmp_path: Path, short_folder: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(5)
    weights = [torch.randn(LAYERS.width, LAYERS.width) for _ in range(LAYERS.count)]
    row = torch.randn(1, LAYERS.width)
    image, kept = tmp_path / "image", tmp_path / "kept"
    image.write_bytes(b"".join(matrix.numpy().tobytes() for matrix in weights))
    kept.mkdir()
    values, expected = row.numpy().tobytes(), row
    for matrix in weights:
        expected = torch.tanh(torch.mm(expected, matrix))
    links = Links(64 << 20)
    flags: dict[str, int | str] = {"capacity-mib": 64}
    paths: list[str] = []
    for number in (1, 2):
        # Another process each time: nothing but the file is left of the first.
        folder = short_folder / str(number)
        folder.mkdir()
        async with ExecutorProcess(ExecutorSettings("host:0", folder, flags), links).running() as process:
            await process.serving(SECONDS)
            await process.client.map_model(
                "v", "at", base=BASE, size_bytes=SIZE, image=image, layout="l", timeout_s=SECONDS
            )
            results, paths = await record(process, folder, [values], candidates=kept)
            assert results == [expected.numpy().tobytes()]
            candidates = list(kept.iterdir())
            assert (len(paths), len(candidates)) == ((0, 1) if number == 1 else (1, 0))
            for candidate in candidates:
                file = core.TapeFile(path=str(candidate), inputs=[_input("x")], output_names=["y"])
                with pytest.raises(FailedPrecondition) as refused:
                    await process.client.load_tapes("v", [file], SECONDS)
                assert refused.value.reason == "TAPE_MISMATCH"
            if not paths:
                continue
            await process.client.unmap_model("v", SECONDS)
            await process.client.map_model(
                "v", "at", base=BASE, size_bytes=SIZE, image=image, layout="l", order=Path(paths[0]), timeout_s=SECONDS
            )
            tape = core.TapeFile(path=paths[0], inputs=[_input("x")], output_names=["y"])
            await process.client.load_tapes("v", [tape], SECONDS)
            answer = await process.client.execute(request(values), SECONDS)
            (output,) = functions.TensorBatch.FromString(answer.outputs).tensors
            assert output.data == expected.numpy().tobytes()
    await links.close()


async def test_replays_keep_to_what_their_version_may_hold(tmp_path: Path, short_folder: Path) -> None:
    image, values = tmp_path / "image", bytes(4 * LAYERS.width)
    image.write_bytes(bytes(SIZE))
    links = Links(64 << 20)
    settings = ExecutorSettings("host:0", short_folder, {"capacity-mib": 64})
    async with ExecutorProcess(settings, links).running() as process:
        await process.serving(SECONDS)
        client = process.client

        async def mapped(working_bytes: int) -> None:
            await client.unmap_model("v", SECONDS)
            await client.map_model(
                "v", "at", base=BASE, size_bytes=SIZE, image=image, timeout_s=SECONDS, working_bytes=working_bytes
            )

        await mapped(0)
        _, (path,) = await record(process, short_folder, [values, values])
        tape = core.TapeFile(path=path, inputs=[_input("x")], output_names=["y"])
        await mapped(1)
        await client.load_tapes("v", [tape], SECONDS)
        with pytest.raises(RouseError, match="`working_memory_bytes`") as failed:
            await client.execute(request(values), SECONDS)
        assert failed.value.reason == "REPLAY_FAILED"
        assert await client.most_working_bytes(SECONDS) == {"v": 0}
        limit = 64 << 10
        await mapped(limit)
        await client.load_tapes("v", [tape], SECONDS)
        # What its plan needs is taken, and so known, before the first replay.
        before = (await client.most_working_bytes(SECONDS))["v"]
        assert 0 < before <= limit
        for _ in range(3):
            (output,) = functions.TensorBatch.FromString(
                (await client.execute(request(values), SECONDS)).outputs
            ).tensors
            assert output.data == values
        assert before <= (await client.most_working_bytes(SECONDS))["v"] <= limit
        assert process.incarnation == 1
    await links.close()


@pytest.fixture(params=["cpu", pytest.param(STAND_IN, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def program(request: pytest.FixtureRequest) -> Path | None:
    """An executor on the CPU, or the same program on a device whose memory it may not touch."""
    try:
        return stand_in_executor() if request.param == STAND_IN else None
    except Unobtainable as error:
        pytest.skip(str(error))


async def admits_another(client: ExecutorClient, image: Path, size: int) -> bool:
    """Whether another function's model is mapped: not where freed memory is not cleared."""
    try:
        await client.map_model("w", "at", base=BASE, size_bytes=size, image=image, timeout_s=SECONDS)
    except FailedPrecondition as error:
        if error.reason != "DEVICE_NOT_SHARED":
            raise
        return False
    return True


async def test_requests_compute_while_the_model_arrives(
    tmp_path: Path, short_folder: Path, program: Path | None
) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(4)
    layers = Layers(4, 512, BASE)
    size = layers.count * layers.matrix_bytes
    image, row = tmp_path / "image", torch.randn(1, layers.width)
    weights = [torch.randn(layers.width, layers.width) for _ in range(layers.count)]
    image.write_bytes(b"".join(matrix.numpy().tobytes() for matrix in weights))
    values, expected = row.numpy().tobytes(), row
    for matrix in weights:
        expected = torch.tanh(torch.mm(expected, matrix))
    asked = request(values, width=layers.width)
    links = Links(64 << 20)
    # The 4 MiB of the model take two seconds.
    flags: dict[str, int | str] = {"capacity-mib": 64, "link-mib-s": 2}
    settings = ExecutorSettings("host:0", short_folder, flags, program)
    async with ExecutorProcess(settings, links).running() as process:
        await process.serving(SECONDS)
        client = process.client

        async def map_model() -> core.CoreModel:
            await client.map_model("v", "at", base=BASE, size_bytes=size, image=image, timeout_s=SECONDS)
            (model,) = (await client.describe(SECONDS)).models
            return model

        model = await map_model()
        assert (model.resident_bytes < size, model.swap_failure) == (True, "")
        # A session that computes on it meanwhile.
        results, (path,) = await record(process, short_folder, [values, values], layers)
        assert results == [expected.numpy().tobytes()] * 2
        described = await client.describe(SECONDS)
        assert described.models[0].resident_bytes == size
        assert described.memory.group_bytes > 0
        assert await client.unmap_model("v", SECONDS) == size

        # A tape.
        tape = core.TapeFile(path=path, inputs=[_input("x", layers.width)], output_names=["y"])
        assert (await map_model()).resident_bytes < size
        await client.load_tapes("v", [tape], SECONDS)
        (output,) = functions.TensorBatch.FromString((await client.execute(asked, SECONDS)).outputs).tensors
        assert output.data == expected.numpy().tobytes()
        await client.unmap_model("v", SECONDS)

        # A request that waits hears of it when the model leaves.
        assert (await map_model()).resident_bytes < size
        await client.load_tapes("v", [tape], SECONDS)
        waiting = asyncio.create_task(client.execute(asked, SECONDS))
        await client.describe(SECONDS)  # it has arrived: the link keeps their order
        assert await client.unmap_model("v", SECONDS) == size
        with pytest.raises(FailedPrecondition) as left:
            await waiting
        # NO_TAPE where it had not begun.
        assert left.value.reason in ("STALE_LEASE", "NO_TAPE")
        memory = (await client.describe(SECONDS)).memory
        assert (memory.mapped_bytes, memory.free_bytes) == (0, memory.capacity_bytes)
        assert await admits_another(client, image, size) == (program is None)
    await links.close()


def _input(name: str, width: int = LAYERS.width) -> core.TapeTensor:
    return core.TapeTensor(name=name, datatype="FP32", shape=[1, width])
