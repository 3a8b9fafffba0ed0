"""Protobuf messages with large fields, taken apart and put together without copying it.

A generated class copies a bytes field when it parses, again when the field is read, and again for every
message that the bytes are put into. Here a message is split at its large fields: they become views of the
received buffer, only the small rest is parsed, and an outgoing message is joined once from its parts.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

Buffer = bytes | memoryview

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10


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
    """The number at `position`, and the position behind it. Raises DecodeError."""
    result = 0
    for count in range(MAX_VARINT_BYTES):
        if position + count >= end:
            raise DecodeError("the message is cut off within a number")
        byte = buffer[position + count]
        result |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return result & 0xFFFF_FFFF_FFFF_FFFF, position + count + 1
    raise DecodeError(f"a number at byte {position} is longer than {MAX_VARINT_BYTES} bytes")


def _field(buffer: Buffer, start: int, end: int) -> tuple[int, int, int]:
    """The field at `start`: its tag, where its value starts, where it ends. Raises DecodeError for what is no message,
    and for groups, which no contract of ours has."""
    tag, value = read_varint(buffer, start, end)
    number, kind = tag >> 3, tag & 7
    if number == 0 or tag > 0xFFFF_FFFF:
        raise DecodeError(f"no field number at byte {start}")
    if kind == LENGTH_DELIMITED:
        length, value = read_varint(buffer, value, end)
        position = value + length
    elif kind == VARINT:
        _, position = read_varint(buffer, value, end)
    elif kind in (FIXED64, FIXED32):
        position = value + (8 if kind == FIXED64 else 4)
    else:
        raise DecodeError(f"wire type {kind} at byte {start}")
    if position > end:
        raise DecodeError(f"field {number} at byte {start} runs past the end of the message")
    return tag, value, position


def split(buffer: Buffer, number: int) -> tuple[Buffer, list[memoryview]]:
    """The message without its length-delimited field `number`, and views of that field's values in their order.
    Raises DecodeError."""
    view = memoryview(buffer)
    values: list[memoryview] = []
    rest: list[memoryview] = []
    wanted = number << 3 | LENGTH_DELIMITED
    position, end, kept = 0, len(view), 0
    while position < end:
        start, tag, value = position, buffer[position], position + 2
        # Nearly every field is short, its tag and its length one byte each: read here, at no call.
        if tag & 7 == LENGTH_DELIMITED and 8 <= tag < 0x80 and value <= end and buffer[start + 1] < 0x80:
            position = value + buffer[start + 1]
            if position > end:
                raise DecodeError(f"field {tag >> 3} at byte {start} runs past the end of the message")
        else:
            tag, value, position = _field(buffer, start, end)
        if tag == wanted:
            values.append(view[value:position])
            if start > kept:
                rest.append(view[kept:start])
            kept = position
    if not values:
        return buffer, values
    if kept < end:
        rest.append(view[kept:])
    return (rest[0] if len(rest) == 1 else b"".join(rest)), values


def split_bytes(buffer: Buffer, number: int) -> tuple[bytes, Buffer]:
    """The message without its bytes field `number`, and a view of that field's value, the last one as in
    protobuf itself; empty where the field is not there. Raises DecodeError."""
    rest, values = split(buffer, number)
    return bytes(rest), values[-1] if values else b""


def joined(rest: bytes, number: int, value: Buffer) -> list[Buffer]:
    """Parts which joined are the serialised message `rest` with `value` as its bytes field `number`."""
    if not len(value):
        return [rest]
    return [rest + varint(number << 3 | LENGTH_DELIMITED) + varint(len(value)), value]
