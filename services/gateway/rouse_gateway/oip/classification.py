"""The classification extension: the largest values of an output instead of all, as "score:index[:label]"."""

from __future__ import annotations

import array
import asyncio
import heapq
import math
import struct
import sys
from collections.abc import Sequence

from rouse_common.errors import InvalidArgument
from rouse_contracts.tensors import join_bytes
from rouse_gateway.state import Version
from rouse_gateway.wire import TensorView

# Type codes of module array; halves are unpacked by hand.
CODES = {
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP32": "f", "FP64": "d",
}  # fmt: skip
HALVES = ("FP16", "BF16")
# A function names the classes of an output by an option of this name and the output's, separated by commas.
LABELS_OPTION = "labels."
# Larger outputs take long to go through, element by element.
HEAVY_BYTES = 64 << 10


async def classify(version: Version, tensor: TensorView, classes: int) -> TensorView:
    """The `classes` largest values of an output, the largest first: BYTES of shape [classes], or of
    [batch, classes] where the function is batchable. Raises InvalidArgument for datatypes without an order."""
    if tensor.datatype not in CODES and tensor.datatype not in HALVES:
        raise InvalidArgument(
            "BAD_PARAMETER",
            f"classification of output '{tensor.name}' of model '{version.function}': values of datatype "
            f"{tensor.datatype} have no order",
            function=version.function,
            tensor=tensor.name,
        )
    spec = version.contract.spec
    batched = spec.batching.max_batch_size > 0 and len(tensor.shape) > 0
    names = spec.options.get(LABELS_OPTION + tensor.name, "")
    labels = [label.strip() for label in names.split(",")] if names else []
    if len(tensor.data) > HEAVY_BYTES:
        return await asyncio.to_thread(_classify, tensor, batched, classes, labels)
    return _classify(tensor, batched, classes, labels)


def _classify(tensor: TensorView, batched: bool, classes: int, labels: Sequence[str]) -> TensorView:
    values = _values(tensor)
    rows = tensor.shape[0] if batched else 1
    width = len(values) // rows if rows else 0
    elements: list[bytes] = []
    for row in range(rows):
        start = row * width
        best = heapq.nlargest(classes, range(width), key=lambda index: _rank(values[start + index]))
        elements += [_element(values[start + index], index, labels) for index in best]
    shape = [rows] * batched + [min(classes, width)]
    return TensorView(tensor.name, "BYTES", tuple(shape), join_bytes(elements))


def _values(tensor: TensorView) -> Sequence[float]:
    if tensor.datatype == "FP16":
        return struct.unpack(f"<{len(tensor.data) // 2}e", tensor.data)
    if tensor.datatype == "BF16":
        halves = memoryview(tensor.data).tobytes()
        wide = b"".join(b"\0\0" + halves[at : at + 2] for at in range(0, len(halves), 2))
        return struct.unpack(f"<{len(wide) // 4}f", wide)
    values = array.array(CODES[tensor.datatype])
    values.frombytes(tensor.data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _rank(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _element(value: float, index: int, labels: Sequence[str]) -> bytes:
    score = f"{value:f}" if isinstance(value, float) else str(value)
    label = f":{labels[index]}" if index < len(labels) else ""
    return f"{score}:{index}{label}".encode()
