"""Tensors: what goes in comes out, and bytes that lie are refused, never read past their end."""

from __future__ import annotations

import math
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rouse_contracts.arrays import DTYPES, from_batch, to_array, to_batch, to_tensor
from rouse_contracts.functions import Tensor, TensorBatch
from rouse_contracts.tensors import (
    DATATYPES,
    ELEMENT_BYTES,
    MAX_ELEMENTS,
    TensorError,
    check_data,
    check_signature,
    element_count,
    iterate_bytes,
    join_bytes,
)

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
# Either byte order, and views that are not contiguous.
NUMBERS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda name: hnp.arrays(st.sampled_from([DTYPES[name], DTYPES[name].newbyteorder(">")]), SHAPES)
)


@given(NUMBERS, st.booleans())
def test_numbers_come_back_bit_by_bit(array: np.ndarray, transposed: bool) -> None:
    array = array.T if transposed else array
    tensor = to_tensor("x", array)
    check_data("x", tensor.datatype, tensor.shape, tensor.data)
    back = to_array(Tensor.FromString(tensor.SerializeToString()))
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("<")
    assert back.tobytes() == np.ascontiguousarray(array, back.dtype).tobytes()
    assert not back.flags.writeable


@given(hnp.arrays(object, SHAPES, elements=st.binary(max_size=9) | st.text(max_size=9)))
def test_bytes_and_strings_come_back_as_bytes(array: np.ndarray) -> None:
    back = to_array(to_tensor("x", array))
    assert back.shape == array.shape
    assert back.ravel().tolist() == [e if isinstance(e, bytes) else e.encode() for e in array.ravel().tolist()]


def test_numpy_s_own_strings_become_bytes() -> None:
    assert to_array(to_tensor("x", np.array(["ä", "b"]))).tolist() == ["ä".encode(), b"b"]
    assert to_array(to_tensor("x", np.array([b"a", b"bc"]))).tolist() == [b"a", b"bc"]


@given(hnp.arrays(np.dtype("<f4"), hnp.array_shapes(max_dims=2, max_side=5), elements=st.floats(width=32)))
def test_bf16_is_widened_without_loss(array: np.ndarray) -> None:
    short = array.astype(ml_dtypes.bfloat16)
    tensor = Tensor(name="x", datatype="BF16", shape=short.shape, data=short.tobytes())
    np.testing.assert_array_equal(to_array(tensor), short.astype(np.float32))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, np.complex64),
        np.zeros(2, "M8[s]"),
        np.zeros(2, [("a", "<i4")]),
        np.array([1, None], object),
        np.array([[1], "a"], object),
    ],
)
def test_an_array_that_no_datatype_holds_is_refused(array: np.ndarray) -> None:
    with pytest.raises(TensorError, match="tensor 'x'"):
        to_tensor("x", array)


def test_a_batch_keeps_names_and_order() -> None:
    batch = to_batch({"b": np.arange(3), "a": np.array([b"z"], object)})
    back = from_batch(TensorBatch.FromString(batch.SerializeToString()))
    assert list(back) == ["b", "a"]
    np.testing.assert_array_equal(back["b"], np.arange(3))


def test_two_tensors_of_one_name_are_refused() -> None:
    tensor = to_tensor("x", np.zeros(1, np.float32))
    with pytest.raises(TensorError, match="same name"):
        from_batch(TensorBatch(tensors=[tensor, tensor]))


@given(st.lists(st.integers(-2, 1 << 42), max_size=5))
def test_an_element_count_is_the_product_or_refused(shape: list[int]) -> None:
    if any(size < 0 for size in shape) or math.prod(shape) > MAX_ELEMENTS:
        with pytest.raises(TensorError, match="tensor 'x'"):
            element_count("x", shape)
    else:
        assert element_count("x", shape) == math.prod(shape)


@given(st.sampled_from(sorted(ELEMENT_BYTES)), st.lists(st.integers(0, 5), max_size=3), st.binary(max_size=300))
def test_data_of_another_length_is_refused(datatype: str, shape: list[int], data: bytes) -> None:
    expected = math.prod(shape) * ELEMENT_BYTES[datatype]
    assume(len(data) != expected)
    with pytest.raises(TensorError, match=f"needs {expected} bytes, got {len(data)}"):
        check_data("x", datatype, shape, data)
    with pytest.raises(TensorError):
        to_array(Tensor(name="x", datatype=datatype, shape=shape, data=data))


@pytest.mark.parametrize("datatype", ["", "fp32", "FLOAT", "INT4"])
def test_an_unknown_datatype_is_refused_with_those_known(datatype: str) -> None:
    with pytest.raises(TensorError, match="unknown datatype") as caught:
        check_data("x", datatype, [1], b"\0")
    assert all(known in str(caught.value) for known in DATATYPES)


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_elements_are_joined_and_split(elements: list[bytes]) -> None:
    data = join_bytes(elements)
    assert list(iterate_bytes("x", data)) == elements
    assert list(iterate_bytes("x", memoryview(data))) == elements
    check_data("x", "BYTES", [len(elements)], data)
    with pytest.raises(TensorError, match=f"needs {len(elements) + 1} BYTES elements, got {len(elements)}"):
        check_data("x", "BYTES", [len(elements) + 1], data)


@given(st.binary(max_size=64))
def test_any_bytes_are_elements_or_refused(data: bytes) -> None:
    """A decoder of foreign bytes: it returns what accounts for every byte, or raises TensorError."""
    try:
        elements = list(iterate_bytes("x", data))
    except TensorError:
        return
    assert join_bytes(elements) == data


def test_a_length_past_the_end_is_refused() -> None:
    with pytest.raises(TensorError, match="of 4294967295 bytes runs past the end at byte 4"):
        list(iterate_bytes("x", struct.pack("<I", 0xFFFFFFFF)))
    with pytest.raises(TensorError, match="cut off at byte 5"):
        list(iterate_bytes("x", join_bytes([b"a"]) + b"\1\0"))


@pytest.mark.parametrize(
    ("given", "wanted", "fits"),
    [
        (("FP32", [2, 3]), ("FP32", [-1, 3]), True),
        (("FP32", [0, 3]), ("FP32", [-1, 3]), True),
        (("FP32", []), ("FP32", []), True),
        (("FP32", [2, 4]), ("FP32", [-1, 3]), False),
        (("FP32", [3]), ("FP32", [-1, 3]), False),
        (("FP64", [2, 3]), ("FP32", [-1, 3]), False),
    ],
)
def test_a_signature_says_what_fits(given: Any, wanted: Any, fits: bool) -> None:
    if fits:
        check_signature("x", *given, *wanted)
    else:
        with pytest.raises(TensorError, match="the function takes"):
            check_signature("x", *given, *wanted)
