"""Tensor data as JSON: lists, nested or flat, to bytes and back."""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

from rouse_common.errors import InvalidArgument
from rouse_contracts.tensors import TensorError, iterate_bytes, join_bytes
from rouse_contracts.wire import Buffer
from rouse_gateway.http.errors import bad_request

# The code of module array for the elements of a datatype. FP16 and BF16 have no JSON form in the protocol.
CODES = {
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP32": "f",
    "FP64": "d",
}
BINARY_ONLY = ("FP16", "BF16")
# What is not finite, as JSON has no number for it; the names are those of protobuf's JSON.
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
BIG_ENDIAN = sys.byteorder == "big"


def pack(name: str, datatype: str, shape: Sequence[int], data: Any) -> bytes:
    """JSON data as a tensor's bytes. Raises InvalidArgument BAD_CONTENTS."""
    values = _flat(name, shape, data)
    if datatype == "BYTES":
        return _pack_texts(name, values)
    if datatype == "BOOL":
        return _pack_bools(name, values)
    code = CODES.get(datatype)
    if code is None:
        raise _bad(name, f"datatype {datatype[:40]} has no JSON form; send it as binary data")
    try:
        packed = array.array(code, values)
    except OverflowError:
        raise _bad(name, f"a value is out of the range of {datatype}") from None
    except TypeError:
        packed = _pack_named(name, datatype, code, values)
    if datatype == "FP32" and (math.inf in packed or -math.inf in packed):
        _check_range(name, values, packed)
    if BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


def _flat(name: str, shape: Sequence[int], data: Any) -> list[Any]:
    """The elements in row-major order. Nested lists must be as long as the shape says; how many elements a
    flat list must have is checked with the tensor."""
    if type(data) is not list:
        raise _bad(name, f"data is {_kind(data)}, want a list")
    level = 0
    while data and type(data[0]) is list:
        level += 1
        if level >= len(shape):
            raise _bad(name, f"data is nested deeper than its shape {list(shape)}")
        size = shape[level]
        if any(type(entry) is not list or len(entry) != size for entry in data):
            raise _bad(name, f"data is ragged: want lists of {size} elements at depth {level}, as the shape says")
        data = list(chain.from_iterable(data))
    flat: list[Any] = data
    return flat


def _pack_texts(name: str, values: list[Any]) -> bytes:
    try:
        return join_bytes([value.encode() for value in values])
    except AttributeError:
        raise _bad(name, "a BYTES element is no string; send what is no text as binary data") from None
    except UnicodeEncodeError:
        raise _bad(name, "a string has half of a surrogate pair") from None


def _pack_bools(name: str, values: list[Any]) -> bytes:
    try:
        packed = bytes(values)
    except (TypeError, ValueError):
        packed = b"\2"
    if packed.strip(b"\0\1"):
        raise _bad(name, "a BOOL element is neither true nor false")
    return packed


def _pack_named(name: str, datatype: str, code: str, values: list[Any]) -> array.array[Any]:
    """As pack, where some elements may be the names of what is not finite."""
    kinds = "numbers" if datatype.startswith("FP") else "whole numbers"
    if not datatype.startswith("FP"):
        raise _bad(name, f"an element is not of datatype {datatype}: want {kinds}")
    try:
        return array.array(code, [NOT_FINITE[v] if type(v) is str else v for v in values])
    except (TypeError, KeyError):
        raise _bad(name, f'an element is not of datatype {datatype}: want {kinds}, "NaN" or "Infinity"') from None
    except OverflowError:
        raise _bad(name, f"a value is out of the range of {datatype}") from None


def _check_range(name: str, values: list[Any], packed: array.array[Any]) -> None:
    """A finite number that only FP64 holds becomes infinite in FP32: refused."""
    for value, stored in zip(values, packed, strict=True):
        if math.isinf(stored) and type(value) is not str and not math.isinf(value):
            raise _bad(name, "a value is out of the range of FP32")


def unpack(name: str, datatype: str, data: Buffer) -> list[Any]:
    """A tensor's bytes as a flat list for JSON. Numbers that are not finite stay floats; see `named`.
    Raises InvalidArgument NOT_JSON for what only binary data can carry."""
    if datatype == "BYTES":
        try:
            return [element.decode() for element in iterate_bytes(name, data)]
        except (UnicodeDecodeError, TensorError):
            raise not_json(name, "holds bytes that are no UTF-8 text") from None
    if datatype == "BOOL":
        return [value != 0 for value in data]
    code = CODES.get(datatype)
    if code is None:
        raise not_json(name, f"has the datatype {datatype}, which has no JSON form")
    values = array.array(code)
    values.frombytes(data)
    if BIG_ENDIAN:
        values.byteswap()
    return values.tolist()


def named(values: list[Any]) -> list[Any]:
    """The list with the names of what is not finite in place of it."""
    return [value if type(value) is not float or math.isfinite(value) else _name(value) for value in values]


def _name(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _kind(value: Any) -> str:
    return {dict: "an object", str: "a string", type(None): "null", bool: "a boolean"}.get(type(value), "a number")


def _bad(name: str, text: str) -> InvalidArgument:
    return bad_request(f"input '{name[:80]}': {text}", "BAD_CONTENTS", tensor=name[:80])


def not_json(name: str, text: str) -> InvalidArgument:
    """An output that only binary data can carry."""
    return bad_request(
        f"output '{name}' {text}: ask for it with the parameter binary_data, or binary_data_output for all",
        "NOT_JSON",
        tensor=name,
    )
