"""Which requests of a function the executor records as tapes, and why others stay eager.

A tape is replayed without the function's Python code, so it may depend on nothing but the inputs' names, datatypes and
shapes, on what operations on the device compute from their values, and on values that the code read back from there.
Code that is given arrays could look at them in many ways; whatever way it is, the memory says so (rouse_native's
Watched), and the request is no tape.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from rouse_contracts import arrays, specs
from rouse_contracts.functions import FunctionSpec
from rouse_contracts.tapes import Input
from rouse_runtime.handlers import Handler
from rouse_runtime.redirected.device import Device, Memory
from rouse_runtime.redirected.placing import Names

LOG = logging.getLogger(__name__)
# Of one session: kinds of requests that are told apart, requests of each that are recorded, and those of them that
# may come to nothing here before the kind stays eager.
MAX_KINDS = 64
MAX_REQUESTS = 64
MAX_FRUITLESS = 3
# Outputs that are converted on the device as they would be on the host: every value has one and only one other form.
WIDER = {
    (torch.float16, "FP32"): torch.float32, (torch.bfloat16, "FP32"): torch.float32,
    (torch.float16, "FP64"): torch.float64, (torch.bfloat16, "FP64"): torch.float64,
    (torch.float32, "FP64"): torch.float64,
}  # fmt: skip
TENSOR_DATATYPES = {
    torch.bool: "BOOL", torch.uint8: "UINT8", torch.uint16: "UINT16", torch.uint32: "UINT32", torch.uint64: "UINT64",
    torch.int8: "INT8", torch.int16: "INT16", torch.int32: "INT32", torch.int64: "INT64", torch.float16: "FP16",
    torch.bfloat16: "BF16", torch.float32: "FP32", torch.float64: "FP64",
}  # fmt: skip


class NoTape(Exception):
    """Why a request cannot become a tape, in words for the function's author."""


@dataclass
class Recording:
    """Requests of one kind: recorded by the executor under a signature, or not, and why.

    Args:
        outputs: their names in order; empty until one was recorded.
        requests: that were recorded.
        fruitless: that were not, in a row.
    """

    signature: str
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...] = ()
    requests: int = 0
    fruitless: int = 0

    @property
    def open(self) -> bool:
        return self.requests < MAX_REQUESTS and self.fruitless < MAX_FRUITLESS


@dataclass
class Take:
    """A request that is being recorded.

    Args:
        given: what the function is called with.
        placed: its inputs on the device; versions: how often each had been written to.
        watched: memory of the arrays that the function is given.
        kept: what the function held when the request began.
    """

    number: int
    recording: Recording
    given: dict[str, Any]
    placed: dict[str, torch.Tensor]
    versions: list[int]
    watched: dict[str, Memory]
    kept: Mapping[str, Any]


def reason_against(spec: FunctionSpec, handler: Handler) -> str:
    """Why requests of a function are never recorded; empty where they may be."""
    if not specs.uses_tapes(spec):
        return "its manifest says tapes = false"
    if spec.decoupled:
        return "a decoupled function has any number of responses"
    if handler.takes_request:
        return "predict() takes the request, of which a tape knows the tensors only"
    return ""


class Recorder:
    """Of one function. Everything but `recordings` and `refused` is called in the thread that runs it."""

    def __init__(self, spec: FunctionSpec, handler: Handler, device: Device, names: Names) -> None:
        self._handler, self._device, self._names = handler, device, names
        self._outputs = {output.name: (output.datatype, tuple(output.shape)) for output in spec.signature.outputs}
        self._inputs = {tensor.name: tensor.datatype for tensor in spec.signature.inputs}
        self._batches = specs.is_batchable(spec)
        self._never = reason_against(spec, handler)
        self._numbers = itertools.count(1)
        self._kinds: dict[str, Recording] = {}
        self.refused = self._never

    def forget(self) -> None:
        """The session is over, and what it recorded with it."""
        self._kinds = {}

    def recordings(self) -> list[Recording]:
        """What was recorded in this session."""
        return [recording for recording in list(self._kinds.values()) if recording.requests]

    # ---- One request ---------------------------------------------------------------------------

    def begin(self, inputs: Mapping[str, np.ndarray]) -> Take | None:
        """Lets the executor record from here on; None where this request is not to be recorded."""
        if self._never or not inputs:
            return None
        kind = self._kind(inputs)
        if kind is None:
            return None
        what = json.dumps([list(kind), sorted(self._outputs)])
        known = self._kinds.get(what)
        if (not known and len(self._kinds) >= MAX_KINDS) or (known and not known.open):
            return None
        memory = {} if self._handler.takes_tensors else {n: self._device.memory(a.nbytes) for n, a in inputs.items()}
        arrays_ = {name: _over(memory[name], array) for name, array in inputs.items()} if memory else inputs
        # Not an inference tensor: those do not count how often they are written to.
        with torch.inference_mode(False):
            placed = {name: torch.from_numpy(array).to(self._device.name) for name, array in arrays_.items()}
        if known is None:
            signature = self._device.signature_of(what, list(placed.values()))
            known = self._kinds[what] = Recording(signature, tuple(Input(*entry) for entry in kind))
        take = Take(
            next(self._numbers), known, dict(arrays_ if memory else placed), placed,
            [tensor._version for tensor in placed.values()], memory, self._handler.kept(),
        )  # fmt: skip
        try:
            for name, region in memory.items():
                self._names.adopt(torch.from_numpy(arrays_[name]), placed[name])
                region.watch()
        except RuntimeError as error:
            self._drop(take, str(error))
            return None
        self._device.begin(take.number, what, list(placed.values()))
        return take

    def end(self, take: Take, result: Any) -> Any:
        """The function has returned: what it returned, with outputs as the signature has them, where the request was
        recorded; None where it has to be called again, with arrays that nobody has looked at."""
        touched = [name for name, region in take.watched.items() if region.unwatch()]
        written = [tensor._version for tensor in take.placed.values()] != take.versions
        try:
            if touched:
                raise NoTape(f"predict() looks at the array '{touched[0]}' itself; a tape sees what becomes a tensor")
            changed = _changed(take.kept, self._handler.kept())
            if changed:
                raise NoTape(f"predict() changes what it keeps as '{changed}'")
            result = self._as_declared(result, take)
        except NoTape as why:
            self._drop(take, str(why))
            return None if touched and written else result
        self._device.end(take.number, list(result.values()))
        self._names.drop_inputs()
        take.recording.outputs, take.recording.fruitless = tuple(result), 0
        take.recording.requests += 1
        return result

    def drop(self, take: Take) -> None:
        """The function has raised."""
        for region in take.watched.values():
            region.unwatch()
        self._names.drop_inputs()

    def _drop(self, take: Take, why: str) -> None:
        self.drop(take)
        take.recording.fruitless += 1
        if self.refused != why:
            LOG.info("request not recorded: %s", why)
        self.refused = why

    def _kind(self, inputs: Mapping[str, np.ndarray]) -> tuple[tuple[str, str, tuple[int, ...]], ...] | None:
        """The inputs but for their values; None where there is one that tapes do not have."""
        kind = []
        for name, array in inputs.items():
            datatype = arrays.DATATYPES.get(array.dtype)
            if datatype is None or self._inputs.get(name, datatype) != datatype:
                return None
            kind.append((name, datatype, array.shape))
        return tuple(kind)

    def _as_declared(self, result: Any, take: Take) -> dict[str, torch.Tensor]:
        """The outputs as they have to leave the device. Raises NoTape where one would have to be made on the host."""
        if not isinstance(result, Mapping) or (self._outputs and result.keys() != self._outputs.keys()):
            raise NoTape("predict() returns something else than the outputs")
        outputs = {name: self._output(name, result[name]) for name in self._outputs or result}
        if self._batches:
            rows = {tensor.shape[:1] for tensor in [*take.placed.values(), *outputs.values()]}
            if len(rows) != 1:
                raise NoTape("not all outputs have as many rows as the inputs")
        if not outputs:
            raise NoTape("predict() returns no outputs")
        return outputs

    def _output(self, name: str, value: Any) -> torch.Tensor:
        if not isinstance(value, torch.Tensor) or value.device.type != self._device.name:
            raise NoTape(f"the output '{name}' is made on the host")
        datatype, shape = self._outputs.get(name, (TENSOR_DATATYPES.get(value.dtype, ""), tuple(value.shape)))
        tensor: torch.Tensor = value
        wider = WIDER.get((tensor.dtype, datatype)) if self._handler.casts else None
        if wider is not None:
            tensor = tensor.to(wider)
        if TENSOR_DATATYPES.get(tensor.dtype) != datatype:
            raise NoTape(f"the output '{name}' is {tensor.dtype}, and converted to {datatype} on the host")
        sizes = tuple(tensor.shape)
        if len(shape) != len(sizes) or any(want not in (-1, size) for want, size in zip(shape, sizes, strict=True)):
            raise NoTape(f"the output '{name}' has shape {list(sizes)}, which the signature does not allow")
        return tensor


def _over(memory: Memory, array: np.ndarray) -> np.ndarray:
    """A copy of an array in memory of ours."""
    if not array.size:
        return array
    copy: np.ndarray = np.frombuffer(cast(Any, memory), dtype=array.dtype, count=array.size).reshape(array.shape)
    copy[...] = array
    return copy


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """A name that stands for something else now; empty where there is none."""
    for name in before.keys() | after.keys():
        if name not in before or name not in after:
            return name
        (old, old_size), (new, new_size) = before[name], after[name]
        if old is not new or old_size != new_size:
            return name
    return ""
