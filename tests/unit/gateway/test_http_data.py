"""JSON tensors: what goes in comes out, for every datatype; what does not fit is refused by name."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common.errors import InvalidArgument
from rouse_contracts.tensors import ELEMENT_BYTES, check_data, join_bytes
from rouse_gateway.http import data
from rouse_gateway.http.infer import dump

FLOATS = {"FP32": "f", "FP64": "d"}
RANGES = {
    name: (-(1 << (8 * size - 1)), (1 << (8 * size - 1)) - 1) if name.startswith("I") else (0, (1 << (8 * size)) - 1)
    for name, size in ELEMENT_BYTES.items()
    if name.startswith(("INT", "UINT"))
}


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, tuple[int, ...], list[Any]]:
    """A datatype, a shape, and as many elements."""
    datatype = draw(st.sampled_from([*RANGES, *FLOATS, "BOOL", "BYTES"]))
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    count = math.prod(shape)
    if datatype in RANGES:
        low, high = RANGES[datatype]
        elements: st.SearchStrategy[Any] = st.integers(low, high)
    elif datatype in FLOATS:
        elements = st.floats(width=32 if datatype == "FP32" else 64)
    else:
        elements = st.booleans() if datatype == "BOOL" else st.text(st.characters(exclude_categories=["Cs"]))
    return datatype, shape, draw(st.lists(elements, min_size=count, max_size=count))


def nest(values: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """A flat list as the nested one that the shape says."""
    if len(shape) == 1:
        return values
    width = math.prod(shape[1:])
    return [nest(values[row * width : (row + 1) * width], shape[1:]) for row in range(shape[0])]


@given(tensors())
def test_what_goes_in_comes_out_nested_or_flat(tensor: tuple[str, tuple[int, ...], list[Any]]) -> None:
    datatype, shape, values = tensor
    for form in (values, nest(values, shape)):
        packed = data.pack("x", datatype, shape, json.loads(json.dumps(form)))
        check_data("x", datatype, shape, packed)
        document = json.loads(dump({"data": data.unpack("x", datatype, packed)}), parse_constant=pytest.fail)
        # Once more, now from what the server itself writes.
        assert data.pack("x", datatype, shape, document["data"]) == packed


@given(st.sampled_from([*RANGES, *FLOATS, "BOOL", "BYTES", "FP16", "nonsense"]), st.binary(max_size=64))
def test_any_bytes_that_are_a_tensor_can_be_written_or_are_refused(datatype: str, content: bytes) -> None:
    size = ELEMENT_BYTES.get(datatype, 1)
    content = content[: len(content) // size * size]
    try:
        dump({"data": data.unpack("x", datatype, content)})
    except InvalidArgument as refused:
        refusal = refused.reason
    else:
        refusal = ""
    assert refusal == "" or (refusal == "NOT_JSON" and datatype in ("BYTES", "FP16", "nonsense"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@given(st.sampled_from([*ELEMENT_BYTES, "BYTES", "", "int32"]), st.lists(st.integers(-2, 3), max_size=3), JSON)
def test_whatever_is_sent_as_data_is_packed_or_refused(datatype: str, shape: list[int], sent: Any) -> None:
    try:
        data.pack("x", datatype, shape, sent)
    except InvalidArgument as refused:
        refusal = (refused.reason, "'x'" in refused.message)
    else:
        refusal = ("", True)
    assert refusal in (("", True), ("BAD_CONTENTS", True))


def test_what_is_not_finite_has_names() -> None:
    packed = data.pack("x", "FP32", [4], ["NaN", math.inf, "-Infinity", 1])
    assert struct.unpack("<4f", packed)[1:] == (math.inf, -math.inf, 1.0)
    assert dump({"data": data.unpack("x", "FP32", packed)}) == b'{"data":["NaN","Infinity","-Infinity",1.0]}'


@pytest.mark.parametrize(
    ("datatype", "shape", "sent", "said"),
    [
        ("INT8", [1], [128], "range of INT8"),
        ("UINT8", [1], [-1], "range of UINT8"),
        ("INT32", [1], [1.5], "whole numbers"),
        ("INT32", [1], ["1"], "whole numbers"),
        ("INT64", [1], [1 << 63], "range of INT64"),
        ("FP32", [1], [1e300], "range of FP32"),
        ("FP32", [1], [10**400], "range of FP32"),
        ("FP32", [1], ["nan"], "NaN"),
        ("FP32", [1], [None], "numbers"),
        ("BOOL", [1], [2], "true nor false"),
        ("BOOL", [1], ["true"], "true nor false"),
        ("BYTES", [1], [1], "no string"),
        ("BYTES", [1], ["\ud800"], "surrogate"),
        ("FP16", [1], [1.0], "binary"),
        ("BF16", [1], [1.0], "binary"),
        ("FP32", [1], 1.0, "want a list"),
        ("FP32", [2, 2], [[1, 2], [3]], "ragged"),
        ("FP32", [2, 2], [[1, 2], 3], "ragged"),
        ("FP32", [2], [[1], [2]], "deeper"),
    ],
)
def test_what_does_not_fit_is_named(datatype: str, shape: list[int], sent: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        data.pack("x", datatype, shape, sent)
    assert caught.value.metadata["tensor"] == "x"


def test_bytes_that_are_no_text_need_binary_data() -> None:
    with pytest.raises(InvalidArgument, match="binary_data") as caught:
        data.unpack("y", "BYTES", join_bytes([b"\xff"]))
    assert caught.value.reason == "NOT_JSON"
