"""A function on the `rouse` device without a mesh: its host copy, an executor that has its weights, its sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rouse_contracts.functions import Execution, FunctionSpec
from rouse_contracts.repository import WeightTensor
from rouse_native.executor import ExecutorProcess, SessionLimits
from rouse_runtime.context import bind
from rouse_runtime.redirected import Redirected
from rouse_runtime.request import Request
from rouse_runtime.weights import WeightsRange, make_tensors

BASE = 0x5000_4000_0000
SIZE = 16
LAYOUT = [
    WeightTensor(name="weight", file="w", dtype="F32", shape=[SIZE, SIZE], image_offset_bytes=0, size_bytes=1024),
    WeightTensor(name="bias", file="w", dtype="F32", shape=[SIZE], image_offset_bytes=1024, size_bytes=64),
]
IMAGE_BYTES = 1088
SPEC = FunctionSpec(name="f", execution=Execution.EXECUTION_ROUSE)


@dataclass
class Function:
    """A loaded function as a handler."""

    call: Callable[[dict[str, np.ndarray]], Any]
    modules: Sequence[torch.nn.Module]
    casts: bool = False
    takes_request: bool = False
    mixes: bool = True
    takes_tensors: bool = False

    def kept(self) -> Mapping[str, Any]:
        return {}

    def predict(self, inputs: dict[str, np.ndarray], request: Request) -> Any:
        return self.call(inputs)


class Host:
    """The model as an instance has it while it loads: mapped from the host copy."""

    def __init__(self, folder: Path) -> None:
        self.image = folder / "image"
        self.image.write_bytes(np.random.default_rng(0).random(IMAGE_BYTES // 4, dtype=np.float32).tobytes())
        self.weights = WeightsRange(IMAGE_BYTES, BASE)
        self.weights.map_private(str(self.image))
        self.tensors = make_tensors(self.weights, LAYOUT)["w"]

    def linear(self) -> torch.nn.Linear:
        layer = torch.nn.Linear(SIZE, SIZE, device="meta")
        bind(layer, dict(self.tensors))
        return layer


class Executor:
    """A running executor that has the model, and its sessions."""

    def __init__(self, process: ExecutorProcess, folder: Path, image: Path) -> None:
        self.process, self._folder, self._image = process, folder, image
        self._sessions = 0
        self.ended = asyncio.Event()

    async def attach(self, function: Redirected, limit_bytes: int = 0) -> None:
        await self.process.serving(30)
        described = await self.process.client.describe(10)
        if not described.models:
            await self.process.client.map_model(
                "v", "a", base=BASE, size_bytes=IMAGE_BYTES, image=self._image, timeout_s=10
            )
        self._sessions += 1
        socket = self._folder / f"s{self._sessions}"
        limits = SessionLimits(scratch_bytes=limit_bytes)
        await self.process.client.open_session(socket.name, socket, 10, version_id="v", record=True, limits=limits)
        await asyncio.to_thread(function.connect, str(socket))

    async def tapes(self) -> int:
        """How many the latest session has recorded."""
        folder = self._folder / "tapes"
        folder.mkdir(exist_ok=True)
        return len((await self.process.client.save_tapes(f"s{self._sessions}", folder, 10)).tapes)


def called(function: Any, **inputs: np.ndarray) -> Mapping[str, np.ndarray]:
    with torch.inference_mode():
        result = function.predict({name: value.copy() for name, value in inputs.items()}, Request("r", None, 60.0))
        return {name: np.asarray(value) for name, value in result.items()}


X = np.random.default_rng(1).random((3, SIZE), dtype=np.float32)
