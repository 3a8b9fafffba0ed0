"""What it costs to run a model that is not on the device: its swap in runs beside the operations that need it.

The copy is a thread of a running executor, whose operators compute with one thread on the host, or on another device.
Timed from MapModel to the answer: the model is mapped, its tape is read, and the replay waits for just what each
operator reads.

Beside it, on the host, per-parameter pipelining, in this process: a layer's hook waits before the layer runs, an
embedding's for its rows, and each parameter is a group.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rouse_common.lifecycle import loop_factory
from rouse_loadtest import plot
from rouse_loadtest.report import Measure, table
from rouse_loadtest.saved_tape import Saved, executor, save
from rouse_loadtest.scenario import Run, Scenario

MIB = 1 << 20
SHARED_MEMORY = Path("/dev/shm")
ALIGNMENT_BYTES = 64
BANDWIDTH_BYTES = 256 * MIB
BANDWIDTH_ROUNDS, MODEL_ROUNDS = 15, 9
CURVE_BYTES = [(16 << 10) << i for i in range(12)]
WAIT_S = 60.0
SWAP_OVER_MEMCPY, SWAP_OVER_WARM = 0.90, {"resnet152_224": 1.08, "bert_128": 1.10}


def resnet152_224() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(depths=[3, 8, 36, 3], layer_type="bottleneck", hidden_sizes=[256, 512, 1024, 2048])
    return ResNetForImageClassification(config), {"pixel_values": torch.rand(1, 3, 224, 224)}


def bert_128() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig()), {"input_ids": torch.randint(0, 30522, (1, 128))}


MODELS = {"resnet152_224": resnet152_224, "bert_128": bert_128}


@contextmanager
def device_with(path: Path, size_bytes: int, gpu: int | None = None) -> Iterator[tuple[Any, Any, Any, Any]]:
    """A host device that has its pages, or a GPU; its ranges, a link into it and the image."""
    from rouse_native.memory import Device, HostImage, Link, Space

    capacity = -(-size_bytes // (2 * MIB)) * 2 * MIB
    device = Device.host(capacity, prefault=True) if gpu is None else Device.cuda(gpu, capacity)
    space = Space(device)
    try:
        yield device, space, Link(device), HostImage.open(str(path), size_bytes)
    finally:
        for one in space.ranges():
            space.release(one.address)
        space.check()


def swap_in(space: Any, link: Any, image: Any, **how: Any) -> Any:
    """Takes the model's range and begins to fill it."""
    from rouse_native.memory import MODEL_BASE, Region

    space.reserve(MODEL_BASE, image.size, Region.MODEL)
    space.map(MODEL_BASE)
    return link.start(MODEL_BASE, image, **how)


def plain_copy(image: Any, gpu: int | None) -> Callable[[], None]:
    """One copy of as many bytes without anything of ours: memcpy of the image into memory that is there; into a GPU
    PyTorch's, from pinned memory."""
    if gpu is None:
        room = (ctypes.c_char * image.size).from_buffer(mmap.mmap(-1, image.size))
        ctypes.memset(room, 1, image.size)

        def copy() -> None:
            ctypes.memmove(room, image.address, image.size)

        return copy
    import torch

    pinned = torch.zeros(image.size, dtype=torch.uint8).pin_memory()
    there = pinned.to(f"cuda:{gpu}")

    def copy_pinned() -> None:
        there.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize(gpu)

    return copy_pinned


def bandwidth(folder: Path, plots: Path, rounds: int, gpu: int | None) -> tuple[list[Measure], int]:
    """A whole swap (range, memory, copy, told) beside one plain copy of as many bytes; and how big a group is best."""
    from rouse_native.memory import MODEL_BASE, elbow

    path = folder / "bandwidth.img"
    path.write_bytes(bytes(BANDWIDTH_BYTES))
    plain, swaps = list[float](), list[float]()
    with device_with(path, BANDWIDTH_BYTES, gpu) as (device, space, link, image):
        copy = plain_copy(image, gpu)
        # As executors have images of a device that is not the host.
        pin = device.pin(image) if gpu is not None else None
        swap_in(space, link, image).wait(WAIT_S)
        curve = device.measure_curve(MODEL_BASE, image, CURVE_BYTES, rounds=rounds)
        space.release(MODEL_BASE)
        group_bytes = elbow(curve)
        for _ in range(rounds):
            started = time.perf_counter()
            copy()
            copied = time.perf_counter()
            swap_in(space, link, image, group_bytes=group_bytes).wait(WAIT_S)
            swapped = time.perf_counter()
            space.release(MODEL_BASE)
            plain.append(copied - started)
            swaps.append(swapped - copied)
        del pin
    path.unlink()
    _show_curve([(p.group_bytes / MIB, p.bytes_per_second / 1e9) for p in curve], group_bytes / MIB, plots, gpu)
    ratios = [copied / swapped for copied, swapped in zip(plain, swaps, strict=True)]
    if gpu is None:
        note = "swap of 256 MiB into a host device over memcpy of the same image into memory that is there"
        return [Measure("bandwidth_over_memcpy", ratios, "ratio", SWAP_OVER_MEMCPY, "higher", note)], group_bytes
    note = f"swap of 256 MiB into cuda:{gpu}, the image pinned, over PyTorch's copy from pinned memory"
    found = [
        Measure("bandwidth_over_memcpy", ratios, "ratio", SWAP_OVER_MEMCPY, "higher", note),
        _speed("swap_gb_per_s", swaps, "PCIe's bandwidth as a swap reaches it"),
        _speed("pinned_copy_gb_per_s", plain, "as PyTorch's copy from pinned memory reaches it"),
    ]
    print(table([[m.name, f"{m.value:.2f}"] for m in found[1:]], ["into the GPU", "GB/s"]), flush=True)
    return found, group_bytes


def _speed(name: str, seconds: Sequence[float], note: str) -> Measure:
    return Measure(name, [BANDWIDTH_BYTES / 1e9 / each for each in seconds], "GB/s", None, "higher", note)


def _show_curve(points: Sequence[tuple[float, float]], elbow_mib: float, plots: Path, gpu: int | None) -> None:
    """Draws and prints GB/s by MiB a group."""
    at = [point for point in points if point[0] == elbow_mib]
    plot.lines(
        plots / "swap_throughput.svg",
        f"Copying into {'a host device' if gpu is None else f'cuda:{gpu}'}, by the size of a group",
        "MiB a group",
        "GB/s",
        {"copied": points, f"elbow: {elbow_mib:g} MiB": at},
    )
    rows = [[f"{size:g}", f"{speed:.2f}", "elbow" if (size, speed) in at else ""] for size, speed in points]
    print(table(rows, ["MiB a group", "GB/s", ""]), flush=True)


class Placed:
    """A model whose parameters lie at fixed addresses of a device, and the image that it is swapped in from.

    Offsets follow the order of first use, as a layout that knows the tape would choose them.

    Args:
        name: one of MODELS.
        path: for the image.
    """

    def __init__(self, name: str, path: Path) -> None:
        import torch

        torch.manual_seed(0)
        self._model, self._inputs = MODELS[name]()
        self._model.eval()
        self._offsets: dict[int, int] = {}
        self._parameters: list[Any] = []
        self.size_bytes = 0
        self.swap: Any = None
        """The one under way: operations wait for it."""
        for module in self._model.modules():
            if any(parameter is not None for parameter in module._parameters.values()):
                module.register_forward_pre_hook(self._before)
        self.expected = self.run()
        for parameter in self._model.parameters():  # what no operation reads
            self._meet(parameter)
        self.order = [(self._offsets[id(p)], p.nbytes) for p in self._parameters]
        """(offset, size) of what operations read, in the order of their first use."""
        embeddings = [m.weight for m in self._model.modules() if isinstance(m, torch.nn.Embedding)]
        self.tables = [(self._offsets[id(weight)], weight.nbytes) for weight in embeddings]
        """What is read by rows."""
        image = bytearray(self.size_bytes)
        for (offset, size), parameter in zip(self.order, self._parameters, strict=True):
            image[offset : offset + size] = parameter.detach().numpy().tobytes()
        path.write_bytes(image)

    def run(self) -> bytes:
        """One inference."""
        import torch

        with torch.inference_mode():
            return bytes(self._model(**self._inputs)[0].numpy().tobytes())

    def move(self, space: Any) -> None:
        """Lays the parameters where the image is swapped in."""
        import torch

        from rouse_native.memory import MODEL_BASE

        for (offset, size), parameter in zip(self.order, self._parameters, strict=True):
            view = space.view(MODEL_BASE + offset, size)
            parameter.data = torch.frombuffer(view, dtype=parameter.dtype).view(parameter.shape)

    def _meet(self, parameter: Any) -> None:
        if id(parameter) not in self._offsets:
            self._offsets[id(parameter)] = self.size_bytes
            self._parameters.append(parameter)
            self.size_bytes += -(-parameter.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    def _before(self, module: Any, arguments: tuple[Any, ...]) -> None:
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            if self.swap is None:
                self._meet(parameter)
            else:
                self._wait(module, parameter, arguments)

    def _wait(self, module: Any, parameter: Any, arguments: tuple[Any, ...]) -> None:
        import torch

        from rouse_native.memory import MODEL_BASE

        address = MODEL_BASE + self._offsets[id(parameter)]
        if isinstance(module, torch.nn.Embedding):
            rows = arguments[0].unique().tolist()
            self.swap.wait_rows(address, parameter.nbytes // parameter.shape[0], rows, WAIT_S)
        else:
            self.swap.wait_ready(address, parameter.nbytes, WAIT_S)


async def through_an_executor(saved: Saved, rounds: int) -> dict[str, list[float]]:
    """Seconds of a warm request, and of requests that begin without the model on the device."""
    taken: dict[str, list[float]] = {"warm": [], "swap": [], "load_then_run": []}
    async with executor(saved.place) as served:
        await served.map(saved)
        await served.load(saved)
        await served.ask(saved)
        for _ in range(rounds + 1):
            taken["warm"].append(await served.ask(saved))
            for way in ("swap", "load_then_run"):
                await served.unmap()
                started = time.perf_counter()
                await served.map(saved)
                if way == "load_then_run":
                    await served.arrived(saved)
                await served.load(saved)
                await served.ask(saved)
                taken[way].append(time.perf_counter() - started)
                await served.arrived(saved)
    # The first round finds caches cold.
    return {way: seconds[1:] for way, seconds in taken.items()}


def in_this_process(name: str, path: Path, rounds: int, group_bytes: int) -> dict[str, list[float]]:
    """Seconds of a warm run, and of one that begins without the model on the device, a group a parameter."""
    from rouse_native.memory import MODEL_BASE

    placed = Placed(name, path)
    taken: dict[str, list[float]] = {}
    with device_with(path, placed.size_bytes) as (_, space, link, image):
        how = {"order": placed.order, "tables": placed.tables}
        placed.swap = swap_in(space, link, image, group_bytes=group_bytes, **how)
        placed.swap.wait(WAIT_S)
        placed.move(space)
        for _ in range(rounds + 1):
            for way in ("warm", "per_parameter"):
                started = time.perf_counter()
                if way != "warm":
                    space.release(MODEL_BASE)
                    started = time.perf_counter()
                    placed.swap = swap_in(space, link, image, group_bytes=0, **how)
                got = placed.run()
                taken.setdefault(way, []).append(time.perf_counter() - started)
                placed.swap.wait(WAIT_S)
                assert got == placed.expected, f"{name}, {way}: not what the model gives natively"
    # The first round finds caches cold.
    return {way: seconds[1:] for way, seconds in taken.items()}


def _over_warm(way: str, name: str, taken: dict[str, list[float]], bar: float | None, note: str) -> Measure:
    ratios = [seconds / warm for seconds, warm in zip(taken[way], taken["warm"], strict=True)]
    return Measure(f"{way}_over_warm.{name}", ratios, "ratio", bar, "lower", note)


def measure(run: Run) -> Sequence[Measure]:
    """Everything, and what it printed on the way."""
    import torch

    torch.set_num_threads(1)
    rounds, model_rounds = (3, 2) if run.quick else (BANDWIDTH_ROUNDS, MODEL_ROUNDS)
    place, group_bytes = run.place, 0
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="rouse-bench-", dir=SHARED_MEMORY) as temporary:
        folder = Path(temporary)
        if place.copied_to:
            measures, group_bytes = bandwidth(folder, run.plots, rounds, place.gpu)
        else:
            print(f"bandwidth: left out, as this process cannot copy into memory of {place.name}", flush=True)
        for name in MODELS:
            model = folder / name
            model.mkdir()
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                taken = runner.run(through_an_executor(save(name, model, place), model_rounds))
            shutil.rmtree(model)
            rows = [[way, f"{statistics.median(s) * 1000:.1f}"] for way, s in taken.items()]
            note = "model not on the device before, one compute thread; MapModel to answer over a request with it there"
            for way, bar in (("swap", SWAP_OVER_WARM[name]), ("load_then_run", None)):
                measures.append(_over_warm(way, name, taken, bar, note))
            if place.on_host:
                beside = in_this_process(name, folder / f"{name}.img", model_rounds, group_bytes)
                rows += [[f"{way}, in this process", f"{statistics.median(s) * 1000:.1f}"] for way, s in beside.items()]
                measures.append(_over_warm("per_parameter", name, beside, None, "the same by hooks, in one process"))
            else:
                rows.append(["per_parameter, in this process", "on the host only"])
            print(table(rows, [name, "ms"]), flush=True)
    return measures


SCENARIO = Scenario("swap", "a model that is not on the device: swap in beside its run", 1.5, measure, anywhere=True)
