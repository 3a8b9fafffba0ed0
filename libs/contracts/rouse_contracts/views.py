"""Tensors in serialised messages, read and written without copying their bytes; see rouse_contracts.wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rouse_contracts.functions import Tensor
from rouse_contracts.wire import LENGTH_DELIMITED, Buffer, split, varint

# rouse.functions.v1.Tensor.data, TensorBatch.tensors
TENSOR_DATA = 4
BATCH_TENSORS = 1


class TensorView(NamedTuple):
    """A tensor whose bytes stay where they were received.

    Args:
        name, datatype: as in the protocol.
        shape: its sizes.
        data: row-major, little-endian; BYTES elements with their lengths.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer


def parse_tensor(buffer: Buffer) -> TensorView:
    """A rouse.functions.v1.Tensor. Raises DecodeError."""
    head, data = split(buffer, TENSOR_DATA)
    tensor = Tensor.FromString(bytes(head))
    return TensorView(tensor.name, tensor.datatype, tuple(tensor.shape), data[-1] if data else b"")


def parse_batch(buffer: Buffer) -> list[TensorView]:
    """The tensors of a serialised rouse.functions.v1.TensorBatch. Raises DecodeError."""
    return [parse_tensor(value) for value in split(buffer, BATCH_TENSORS)[1]]


def tensor_parts(tensors: Iterable[TensorView], number: int) -> list[Buffer]:
    """Parts which joined are `tensors` as the repeated field `number` of rouse.functions.v1.Tensor."""
    parts: list[Buffer] = []
    for tensor in tensors:
        parts += _parts(tensor.name, tensor.datatype, tensor.shape, [tensor.data], number)
    return parts


def joined_parts(pieces: Iterable[tuple[TensorView, list[Buffer]]], number: int) -> list[Buffer]:
    """The same where a tensor's bytes lie in pieces: its own `data` is not looked at."""
    parts: list[Buffer] = []
    for tensor, data in pieces:
        parts += _parts(tensor.name, tensor.datatype, tensor.shape, data, number)
    return parts


def bytes_field(number: int, parts: Sequence[Buffer]) -> list[Buffer]:
    """Parts which joined are the field `number` whose value are `parts` joined."""
    length = sum(map(len, parts))
    return [varint(number << 3 | LENGTH_DELIMITED) + varint(length), *parts]


def _parts(name: str, datatype: str, shape: tuple[int, ...], data: list[Buffer], number: int) -> list[Buffer]:
    head = Tensor(name=name, datatype=datatype, shape=shape).SerializeToString()
    size = sum(map(len, data))
    prefix = head + _DATA_TAG + varint(size) if size else head
    tag = varint(number << 3 | LENGTH_DELIMITED)
    return [tag + varint(len(prefix) + size) + prefix, *(piece for piece in data if piece)]


_DATA_TAG = varint(TENSOR_DATA << 3 | LENGTH_DELIMITED)
