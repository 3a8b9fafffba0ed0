"""Tapes: requests recorded on the `rouse` device, and replayed from one message (docs/native.md, "Tapes").

    outputs = tape.call(model, [x.to("rouse")])     # eager and recorded, until a tape is verified; then replayed

A function here takes tensors on the device and returns a tensor or a sequence of tensors on it; whatever else it
depends on belongs into `what`, or is the same for every call.
"""

from __future__ import annotations

import enum
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rouse_native import _redirect, redirect

# The lowest address that models have; sessions made with `model=` map their weights there.
MODEL_BASE = 0x5000_0000_0000
# Each weight begins on a cache line.
ALIGNMENT = 64

Function = Callable[..., torch.Tensor | Sequence[torch.Tensor]]
_requests = itertools.count(1)


class Outcome(enum.IntEnum):
    """How a replay went."""

    DONE = 0
    # A value that the function had read back is another one now: run it eagerly.
    GUARD_MISSED = 1
    NO_TAPE = 2


@dataclass(frozen=True)
class Replay:
    outcome: Outcome
    outputs: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class TapeInfo:
    """What the executor knows of one signature.

    Args:
        signature: hexadecimal.
        recorded: requests that ran eagerly.
        tapes: verified ones, one for each way that guards came out.
        replays, guards_missed: of all its tapes.
        planned_blocks, unplanned_blocks: allocations of its first tape's replays, at their planned place and elsewhere.
        arena_bytes, least_bytes, all_bytes: of its first tape's plan; what any plan needs; of all blocks together.
        graph_replays: replays of its first tape that the device was given as one graph.
        no_graph: why there are none of them; empty where there are, or may yet be.
        refused: why the last request gave no tape; empty where it did, or was the first of its kind.
    """

    signature: str
    recorded: int
    tapes: int
    replays: int
    guards_missed: int
    planned_blocks: int
    unplanned_blocks: int
    arena_bytes: int
    least_bytes: int
    all_bytes: int
    graph_replays: int
    no_graph: str
    refused: str


def record(function: Function, inputs: Sequence[torch.Tensor], what: str = "") -> tuple[torch.Tensor, ...]:
    """Runs it eagerly, as one request that the executor records."""
    request = next(_requests)
    _redirect.begin_request(request, what, list(inputs))
    result = function(*inputs)
    outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result)
    _redirect.end_request(request, list(outputs))
    return outputs


def replay(inputs: Sequence[torch.Tensor], what: str = "") -> Replay:
    """Replays a tape of these inputs' signature, where there is one. Waits for it.

    Raises what an operator that failed before raises at any wait.
    """
    outcome, outputs = _redirect.replay(what, list(inputs))
    return Replay(Outcome(outcome), tuple(outputs))


def call(function: Function, inputs: Sequence[torch.Tensor], what: str = "") -> tuple[torch.Tensor, ...]:
    """Replays where a verified tape meets its guards, else runs eagerly and records."""
    replayed = replay(inputs, what)
    return replayed.outputs if replayed.outcome is Outcome.DONE else record(function, inputs, what)


def infos() -> list[TapeInfo]:
    """All signatures that this session has seen, or loaded."""
    return [TapeInfo(**one) for one in json.loads(_redirect.describe_tapes())]


@dataclass(frozen=True)
class Weight:
    """One tensor in an image of weights. `offset_bytes` is relative to the image's start."""

    name: str
    offset_bytes: int
    dtype: torch.dtype
    sizes: tuple[int, ...]


def write_image(model: torch.nn.Module, path: Path) -> list[Weight]:
    """Writes a CPU model's parameters and buffers into one file that sessions map; tensors that share memory once."""
    layout: list[Weight] = []
    seen: dict[int, int] = {}
    end = 0
    with path.open("wb") as file:
        for name, tensor in model.state_dict(keep_vars=True).items():
            whole = tensor.detach().contiguous()
            offset = seen.setdefault(tensor.data_ptr(), end) if tensor.numel() else end
            if offset == end:
                file.seek(end)
                file.write(whole.view(-1).view(torch.uint8).numpy().tobytes())
                end += -(-whole.nbytes // ALIGNMENT) * ALIGNMENT
            layout.append(Weight(name, offset, tensor.dtype, tuple(tensor.shape)))
        file.truncate(end)
    return layout


def adopt_image(model: torch.nn.Module, layout: Sequence[Weight], base: int = MODEL_BASE) -> None:
    """Puts the mapped weights in the place of a model's own, by name; what is not among them goes to the device."""
    for weight in layout:
        parent_name, _, name = weight.name.rpartition(".")
        parent = model.get_submodule(parent_name)
        mapped = redirect.tensor_at(base + weight.offset_bytes, weight.dtype, weight.sizes)
        if name in parent._parameters:
            parent._parameters[name] = torch.nn.Parameter(mapped, requires_grad=False)
        else:
            parent._buffers[name] = mapped
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device.type != "rouse":
                module._buffers[name] = buffer.to("rouse")
