"""Protobuf messages with tensors in them, taken apart and put together without copying the tensors' bytes.

A generated class copies a bytes field when it parses, again when the field is read, and again for every
message that the bytes are put into. Here a message is split at its large fields: they become views of the
received buffer, only the small rest is parsed, and an outgoing message is joined once from its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from rouse_contracts.functions import Tensor

Buffer = bytes | memoryview

LENGTH_DELIMITED = 2
# rouse.functions.v1.Tensor.data, TensorBatch.tensors
TENSOR_DATA = 4
BATCH_TENSORS = 1


@dataclass(frozen=True, slots=True)
class TensorView:
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


def varint(value: int) -> bytes:
    """An unsigned number as it travels."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """The number at `position` and the position behind it. Raises DecodeError."""
    result = shift = 0
    while position < end:
        byte = buffer[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift > 63:
            raise DecodeError(f"a number at byte {position} is longer than 10 bytes")
    raise DecodeError("the message is cut off within a number")


def fields(buffer: Buffer) -> Iterator[tuple[int, int, int, int, int]]:
    """The fields of a message in their order: number, wire type, where the field starts, where its value
    starts, where it ends. Raises DecodeError for what is no message, and for groups, which no contract of
    ours has."""
    position, end = 0, len(buffer)
    while position < end:
        start = position
        tag, position = read_varint(buffer, position, end)
        number, kind = tag >> 3, tag & 7
        if number == 0 or tag > 0xFFFFFFFF:
            raise DecodeError(f"no field number at byte {start}")
        if kind == LENGTH_DELIMITED:
            length, value = read_varint(buffer, position, end)
            position = value + length
        elif kind == 0:
            value = position
            _, position = read_varint(buffer, position, end)
        elif kind in (1, 5):
            value = position
            position += 8 if kind == 1 else 4
        else:
            raise DecodeError(f"wire type {kind} at byte {start}")
        if position > end:
            raise DecodeError(f"field {number} at byte {start} runs past the end of the message")
        yield number, kind, start, value, position


def split(buffer: Buffer, number: int) -> tuple[Buffer, list[memoryview]]:
    """The message without its length-delimited field `number`, and views of that field's values.
    Raises DecodeError."""
    view = memoryview(buffer)
    values: list[memoryview] = []
    rest: list[memoryview] = []
    kept = 0
    for found, kind, start, value, end in fields(buffer):
        if found == number and kind == LENGTH_DELIMITED:
            values.append(view[value:end])
            if start > kept:
                rest.append(view[kept:start])
            kept = end
    if not values:
        return buffer, values
    if kept < len(view):
        rest.append(view[kept:])
    return (rest[0] if len(rest) == 1 else b"".join(rest)), values


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
    tag = varint(number << 3 | LENGTH_DELIMITED)
    for tensor in tensors:
        head = Tensor(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape).SerializeToString()
        data = tensor.data
        prefix = head + _DATA_TAG + varint(len(data)) if data else head
        parts.append(tag + varint(len(prefix) + len(data)) + prefix)
        if data:
            parts.append(data)
    return parts


def bytes_field(number: int, parts: list[Buffer]) -> list[Buffer]:
    """Parts which joined are the field `number` whose value are `parts` joined."""
    length = sum(map(len, parts))
    return [varint(number << 3 | LENGTH_DELIMITED) + varint(length), *parts]


_DATA_TAG = varint(TENSOR_DATA << 3 | LENGTH_DELIMITED)
