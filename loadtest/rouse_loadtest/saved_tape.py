"""A model as files, as a node keeps it: image, verified tape, a request and its answer; and an executor that has it."""

from __future__ import annotations

import asyncio
import copy
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rouse_common.lifecycle import loop_factory
from rouse_common.link import Links
from rouse_contracts import core, device, functions
from rouse_loadtest.core_models import build
from rouse_loadtest.place import HOST, Place
from rouse_native.executor import ExecutorClient, ExecutorProcess, ExecutorSettings
from rouse_native.session import dial

BASE = 0x5000_0000_0000
TIMEOUT_S = 60.0
VERSION, ATTACHMENT, OUTPUT = "v", "at", "y"
DATATYPES = {"torch.float32": "FP32", "torch.int64": "INT64"}


@dataclass(frozen=True)
class Saved:
    """One model.

    Attributes:
        model: the class's name in transformers, whose weights lie in the folder, too.
        request: the inputs' bytes, one after the other.
        inputs: what they are called and look like.
        batch: the inputs as a serialised TensorBatch.
        answer: the output's bytes, float32, as the model gives them natively on the same device.
        groups: (offset, size) of what is to be copied first: all but the tables that are read by rows.
        place: where its tape was recorded, and replays.
    """

    name: str
    model: str
    folder: Path
    request: bytes
    answer: bytes
    inputs: tuple[core.TapeTensor, ...]
    batch: bytes
    groups: tuple[tuple[int, int], ...]
    place: Place

    @property
    def image(self) -> Path:
        return self.folder / "image"

    @property
    def tape(self) -> Path:
        (tape,) = (self.folder / "tapes").glob("*.tape")
        return tape

    def answered_by(self, output: bytes) -> bool:
        """Whether an executor's output is the model's own: to the bit on the host, elsewhere within a tolerance."""
        if self.place.on_host or output == self.answer:
            return output == self.answer
        import torch

        from rouse_loadtest.gpu_exact import agree

        found, expected = (torch.frombuffer(bytearray(data), dtype=torch.float32) for data in (output, self.answer))
        return agree(self.place, found, expected)


def save(name: str, folder: Path, place: Place = HOST) -> Saved:
    """Writes a model's safetensors, image and verified tape. Raises RuntimeError where it is not taped."""
    import torch

    from rouse_native import tape

    # As executors compute, and as what is measured beside them does: with more threads sums come out otherwise.
    torch.set_num_threads(1)
    built = build(name)
    built.module.save_pretrained(folder)
    torch.save(built.inputs, folder / "inputs.pt")
    (folder / "tapes").mkdir()
    layout = tape.write_image(built.module, folder / "image")
    names = list(built.inputs)
    there = copy.deepcopy(built.module)
    here = built.module.to(place.torch)
    with torch.inference_mode():
        given = {key: value.to(place.torch) for key, value in built.inputs.items()}
        expected = built.result(here(**given)).cpu()
    tables = {f"{path}.weight" for path, module in here.named_modules() if isinstance(module, torch.nn.Embedding)}
    sizes = {key: value.nbytes for key, value in here.state_dict().items()}
    tensors = [
        functions.Tensor(
            name=key, datatype=DATATYPES[str(value.dtype)], shape=list(value.shape),
            data=value.contiguous().numpy().tobytes(),
        )
        for key, value in built.inputs.items()
    ]  # fmt: skip
    saved = Saved(
        name, type(built.module).__name__, folder, b"".join(bytes(tensor.data) for tensor in tensors),
        expected.numpy().tobytes(),
        tuple(core.TapeTensor(name=each.name, datatype=each.datatype, shape=each.shape) for each in tensors),
        functions.TensorBatch(tensors=tensors).SerializeToString(),
        tuple((one.offset_bytes, sizes[one.name]) for one in layout if one.name not in tables and sizes[one.name]),
        place,
    )  # fmt: skip

    def requests() -> None:
        def function(*given: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = built.result(there(**dict(zip(names, given, strict=True))))
            return found

        with torch.inference_mode():
            tape.adopt_image(there, layout)
            inputs = [value.to("rouse") for value in built.inputs.values()]
            for _ in range(3):
                tape.record(function, inputs, name)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_record(saved, requests))
    return saved


async def _record(saved: Saved, requests: Callable[[], None]) -> None:
    """Writes the tape of requests on the device, by a running executor: it knows what the tape holds for."""
    async with executor(saved.place) as served:
        await served.map(saved)
        await served.record(saved.folder / "tapes", requests)


class Served:
    """A running executor that may have one saved model."""

    def __init__(self, client: ExecutorClient) -> None:
        self._client = client

    async def map(self, saved: Saved) -> None:
        """Begins to bring the model; returns while its weights arrive."""
        await self._client.map_model(
            VERSION, ATTACHMENT, base=BASE, size_bytes=saved.image.stat().st_size, image=saved.image,
            timeout_s=TIMEOUT_S, groups=saved.groups,
        )  # fmt: skip

    async def arrived(self, saved: Saved) -> None:
        """Returns when all of the model is there. Raises RuntimeError where it does not come."""
        size, until = saved.image.stat().st_size, time.monotonic() + TIMEOUT_S
        while True:
            (model,) = (await self._client.describe(TIMEOUT_S)).models
            if model.resident_bytes == size:
                return
            if model.swap_failure or time.monotonic() > until:
                raise RuntimeError(f"{saved.name} has not arrived: {model.swap_failure or 'too slow'}")

    async def load(self, saved: Saved) -> None:
        """Has the executor read and prepare the tape."""
        tape = core.TapeFile(path=str(saved.tape), inputs=saved.inputs, output_names=[OUTPUT])
        await self._client.load_tapes(VERSION, [tape], TIMEOUT_S)

    async def ask(self, saved: Saved) -> float:
        """Seconds of one request. Raises RuntimeError where the answer is another than the model's."""
        request = device.ExecuteRequest(lease_id=f"{ATTACHMENT}/1", request_id="r", inputs=saved.batch)
        began = time.perf_counter()
        response = await self._client.execute(request, TIMEOUT_S)
        took = time.perf_counter() - began
        (output,) = functions.TensorBatch.FromString(response.outputs).tensors
        if not saved.answered_by(output.data):
            raise RuntimeError(f"{saved.name}: the executor gave other numbers than the model")
        return took

    async def record(self, folder: Path, requests: Callable[[], None]) -> None:
        """Writes the tape of what `requests`, in a thread of its own, does on the `rouse` device with the model mapped.

        Raises RuntimeError where that gives none, or several.
        """
        from rouse_native import redirect

        with tempfile.TemporaryDirectory(prefix="rouse-") as sockets:
            socket = Path(sockets) / "session"
            await self._client.open_session("s", socket, TIMEOUT_S, version_id=VERSION, record=True)
            with redirect.attach(*dial(socket, TIMEOUT_S)):
                await asyncio.to_thread(requests)
                # What was only sent is not recorded yet; this is also where an operator that failed says so.
                await asyncio.to_thread(redirect.synchronize)
                written = await self._client.save_tapes("s", folder, TIMEOUT_S)
        if len(written.tapes) != 1 or written.refused:
            raise RuntimeError(f"{len(written.tapes)} tapes were saved instead of one: {written.refused}")

    async def unmap(self) -> None:
        await self._client.unmap_model(VERSION, TIMEOUT_S)


@asynccontextmanager
async def executor(place: Place) -> AsyncIterator[Served]:
    """A running rouse-executor with one compute thread and 1 GiB of the device."""
    links = Links(64 << 20)
    # A socket's path has 108 bytes at most.
    with tempfile.TemporaryDirectory(prefix="rouse-") as folder:
        flags: dict[str, int | str] = {"threads": 1, "capacity-mib": 1024}
        settings = ExecutorSettings(place.executor, Path(folder), flags, place.program)
        async with ExecutorProcess(settings, links).running() as process:
            await process.serving(TIMEOUT_S)
            yield Served(process.client)
    await links.close()
