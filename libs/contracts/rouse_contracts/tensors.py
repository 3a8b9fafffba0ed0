"""Datatypes of the Open Inference Protocol and the checks that need no array library."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

# Bytes an element; BYTES has no fixed size.
ELEMENT_BYTES = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
DATATYPES = frozenset(ELEMENT_BYTES) | {"BYTES"}
MAX_ELEMENTS = 1 << 40


class TensorError(ValueError):
    """A tensor that contradicts itself or its signature; the text names the tensor and both values."""


def element_count(name: str, shape: Sequence[int]) -> int:
    """Number of elements of a shape. Raises TensorError where a size is negative or they overflow."""
    if any(size < 0 for size in shape):
        raise TensorError(f"tensor '{name}' has a negative size in its shape {list(shape)}")
    count = math.prod(shape)
    if count > MAX_ELEMENTS:
        raise TensorError(f"tensor '{name}' has a shape {list(shape)} of more than {MAX_ELEMENTS} elements")
    return count


def check_data(name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> None:
    """Checks that `data` holds exactly what datatype and shape say. Raises TensorError."""
    if datatype not in DATATYPES:
        raise TensorError(
            f"tensor '{name}' has an unknown datatype '{datatype}'; known: {', '.join(sorted(DATATYPES))}"
        )
    count = element_count(name, shape)
    if datatype == "BYTES":
        found = sum(1 for _ in iterate_bytes(name, data))
        if found != count:
            raise TensorError(f"tensor '{name}' of shape {list(shape)} needs {count} BYTES elements, got {found}")
        return
    expected = count * ELEMENT_BYTES[datatype]
    if len(data) != expected:
        raise TensorError(
            f"tensor '{name}' of datatype {datatype} and shape {list(shape)} needs {expected} bytes, got {len(data)}"
        )


def check_signature(
    name: str, datatype: str, shape: Sequence[int], want_datatype: str, want_shape: Sequence[int]
) -> None:
    """Checks datatype and shape against a signature, where -1 stands for any size. Raises TensorError."""
    if datatype != want_datatype:
        raise TensorError(f"tensor '{name}' has datatype {datatype}, the function takes {want_datatype}")
    fits = len(shape) == len(want_shape) and all(w in (-1, s) for s, w in zip(shape, want_shape, strict=True))
    if not fits:
        raise TensorError(
            f"tensor '{name}' has shape {list(shape)}, the function takes {list(want_shape)} (-1: any size)"
        )


def iterate_bytes(name: str, data: bytes | memoryview) -> Iterator[bytes]:
    """The elements of a BYTES tensor. Raises TensorError where a length runs past the end."""
    position, end = 0, len(data)
    while position < end:
        if position + 4 > end:
            raise TensorError(f"tensor '{name}': a BYTES length is cut off at byte {position}")
        (length,) = struct.unpack_from("<I", data, position)
        position += 4
        if position + length > end:
            raise TensorError(
                f"tensor '{name}': a BYTES element of {length} bytes runs past the end at byte {position}"
            )
        yield bytes(data[position : position + length])
        position += length


def join_bytes(elements: Sequence[bytes]) -> bytes:
    """BYTES elements as they travel: each a 4-byte little-endian length and its bytes."""
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)
