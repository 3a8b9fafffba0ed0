"""Inputs of several requests as one, and its outputs as theirs again: on the wire, without reading the elements.

The first dimension of every tensor of a batchable function is the batch: it adds up, and the tensors' bytes
follow one another. Only BYTES tensors are walked, from length to length, to find where a row ends.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence

from google.protobuf.message import DecodeError

from rouse_common.errors import Internal
from rouse_contracts import node, views
from rouse_contracts.tensors import ELEMENT_BYTES, TensorError, element_count
from rouse_contracts.views import TensorView
from rouse_contracts.wire import Buffer

LENGTH = struct.Struct("<I")


def kind(request: node.InferRequest, inputs: Buffer) -> Hashable:
    """What requests must have in common to share a batch: names, datatypes and trailing shapes of the tensors,
    the outputs wanted, the options. None for one that must be executed alone: its tensors do not agree on the
    rows, or are none at all."""
    try:
        tensors = views.parse_batch(inputs)
    except DecodeError:
        return None
    if not tensors or any(not tensor.shape or tensor.shape[0] != request.rows for tensor in tensors):
        return None
    shapes = tuple(sorted((tensor.name, tensor.datatype, tensor.shape[1:]) for tensor in tensors))
    if len({name for name, *_ in shapes}) < len(shapes):
        return None
    options = type(request.options)()
    options.CopyFrom(request.options)
    options.priority = 0
    return shapes, tuple(request.output_names), options.SerializeToString(deterministic=True)


def join(members: Sequence[Buffer]) -> list[Buffer]:
    """Parts which joined are the serialised TensorBatch of all members, which are of one kind; in the order of
    the first one's tensors. Raises DecodeError."""
    batches = [{tensor.name: tensor for tensor in views.parse_batch(member)} for member in members]
    pieces: list[tuple[TensorView, list[Buffer]]] = []
    for name, first in batches[0].items():
        tensors = [batch[name] for batch in batches]
        rows = sum(tensor.shape[0] for tensor in tensors)
        whole = TensorView(name, first.datatype, (rows, *first.shape[1:]), b"")
        pieces.append((whole, [tensor.data for tensor in tensors]))
    return views.joined_parts(pieces, views.BATCH_TENSORS)


def split(outputs: Buffer, rows: Sequence[int], function: str) -> list[bytes]:
    """The serialised TensorBatch of each member, which has so many `rows`.

    Raises Internal BAD_RESULT where an output's first dimension is not the batch, or its bytes are not what its
    shape says.
    """
    parts: list[list[Buffer]] = [[] for _ in rows]
    try:
        for tensor in views.parse_batch(outputs):
            for part, piece in zip(parts, _pieces(tensor, rows), strict=True):
                part += views.tensor_parts([piece], views.BATCH_TENSORS)
    except (DecodeError, TensorError) as error:
        raise Internal(
            "BAD_RESULT", f"function '{function}', executed with {sum(rows)} rows: {error}", function=function
        ) from None
    return [b"".join(part) for part in parts]


def _pieces(tensor: TensorView, rows: Sequence[int]) -> list[TensorView]:
    """The tensor cut by rows. Raises TensorError."""
    total, shape = sum(rows), tensor.shape
    if not shape or shape[0] != total:
        raise TensorError(
            f"output '{tensor.name}' has shape {list(shape)}; a batchable function's outputs have the batch, "
            f"{total}, as their first dimension"
        )
    a_row = element_count(tensor.name, shape[1:])
    data = memoryview(tensor.data)
    if tensor.datatype == "BYTES":
        ends = _ends_of_rows(tensor, [count * a_row for count in rows])
    else:
        size = a_row * ELEMENT_BYTES.get(tensor.datatype, 0)
        if size * total != len(data):
            raise TensorError(
                f"output '{tensor.name}' of datatype {tensor.datatype} and shape {list(shape)} needs {size * total} "
                f"bytes, got {len(data)}"
            )
        ends, end = [], 0
        for count in rows:
            end += count * size
            ends.append(end)
    starts = [0, *ends[:-1]]
    return [
        TensorView(tensor.name, tensor.datatype, (count, *shape[1:]), data[start:end])
        for count, start, end in zip(rows, starts, ends, strict=True)
    ]


def _ends_of_rows(tensor: TensorView, elements: Sequence[int]) -> list[int]:
    """Where each run of so many BYTES elements ends. Raises TensorError."""
    data, position, ends = tensor.data, 0, []
    for count in elements:
        for _ in range(count):
            if position + LENGTH.size > len(data):
                raise TensorError(f"output '{tensor.name}': a BYTES element is missing at byte {position}")
            (length,) = LENGTH.unpack_from(data, position)
            position += LENGTH.size + length
        if position > len(data):
            raise TensorError(f"output '{tensor.name}': a BYTES element runs past the end")
        ends.append(position)
    if position != len(data):
        raise TensorError(f"output '{tensor.name}' has {len(data) - position} bytes behind its last element")
    return ends
