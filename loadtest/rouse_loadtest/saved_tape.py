"""A model as files, as a node keeps it: image, verified tape, a request and its answer; and an executor that has it."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rouse_common.link import Links
from rouse_contracts import core, device, functions
from rouse_loadtest.core_models import build
from rouse_native.executor import ExecutorClient, ExecutorProcess, ExecutorSettings

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
        answer: the output's bytes, as the model gives them natively.
        groups: (offset, size) of what is to be copied first: all but the tables that are read by rows.
    """

    name: str
    model: str
    folder: Path
    request: bytes
    answer: bytes
    inputs: tuple[core.TapeTensor, ...]
    batch: bytes
    groups: tuple[tuple[int, int], ...]

    @property
    def image(self) -> Path:
        return self.folder / "image"

    @property
    def tape(self) -> Path:
        (tape,) = (self.folder / "tapes").glob("*.tape")
        return tape


def save(name: str, folder: Path) -> Saved:
    """Writes a model's safetensors, image and verified tape. Raises RuntimeError where it is not taped."""
    import torch

    from rouse_native import redirect, tape

    # As executors compute, and as what is measured beside them does: with more threads sums come out otherwise.
    torch.set_num_threads(1)
    built = build(name)
    built.module.save_pretrained(folder)
    torch.save(built.inputs, folder / "inputs.pt")
    (folder / "tapes").mkdir()
    layout = tape.write_image(built.module, folder / "image")
    names = list(built.inputs)
    with redirect.spawn_local(tapes=folder / "tapes", model=folder / "image"), torch.inference_mode():
        expected = built.result(built.module(**built.inputs))
        there = copy.deepcopy(built.module)
        tape.adopt_image(there, layout)
        inputs = [value.to("rouse") for value in built.inputs.values()]

        def function(*given: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = built.result(there(**dict(zip(names, given, strict=True))))
            return found

        for _ in range(3):
            tape.record(function, inputs, name)
        (info,) = tape.infos()
    if info.tapes != 1 or info.refused:
        raise RuntimeError(f"{name} has no saved tape: {info.refused}")
    tables = {
        f"{path}.weight" for path, module in built.module.named_modules() if isinstance(module, torch.nn.Embedding)
    }
    sizes = {key: value.nbytes for key, value in built.module.state_dict().items()}
    tensors = [
        functions.Tensor(
            name=key, datatype=DATATYPES[str(value.dtype)], shape=list(value.shape),
            data=value.contiguous().numpy().tobytes(),
        )
        for key, value in built.inputs.items()
    ]  # fmt: skip
    return Saved(
        name, type(built.module).__name__, folder, b"".join(bytes(tensor.data) for tensor in tensors),
        expected.numpy().tobytes(),
        tuple(core.TapeTensor(name=each.name, datatype=each.datatype, shape=each.shape) for each in tensors),
        functions.TensorBatch(tensors=tensors).SerializeToString(),
        tuple((one.offset_bytes, sizes[one.name]) for one in layout if one.name not in tables and sizes[one.name]),
    )  # fmt: skip


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
        if output.data != saved.answer:
            raise RuntimeError(f"{saved.name}: the executor gave other numbers than the model")
        return took

    async def unmap(self) -> None:
        await self._client.unmap_model(VERSION, TIMEOUT_S)


@asynccontextmanager
async def executor(flags: Mapping[str, int | str]) -> AsyncIterator[Served]:
    """A running rouse-executor with one compute thread."""
    links = Links(64 << 20)
    # A socket's path has 108 bytes at most.
    with tempfile.TemporaryDirectory(prefix="rouse-") as folder:
        settings = ExecutorSettings("host:0", Path(folder), {"threads": 1, **flags})
        async with ExecutorProcess(settings, links).running() as process:
            await process.serving(TIMEOUT_S)
            yield Served(process.client)
    await links.close()
