from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rouse_contracts import arrays as contract
from rouse_contracts.functions import Signature, TensorBatch, TensorSpec
from rouse_contracts.tensors import TensorError
from rouse_runtime.arrays import SMALL_BYTES, Codec
from rouse_runtime.failures import BadResult, UnknownOutput

ANY = Signature()
FREE = Codec(ANY, casts=False)
DTYPES = st.sampled_from(sorted(contract.DTYPES.values(), key=str))


def signature(datatype: str, shape: list[int]) -> Signature:
    spec = TensorSpec(name="a", datatype=datatype, shape=shape)
    return Signature(inputs=[spec], outputs=[spec])


def write(value: Any, sig: Signature = ANY, *, cast: bool = False) -> Any:
    return TensorBatch.FromString(Codec(sig, cast).write({"a": value}, [])).tensors[0]


@given(hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=3)))
def test_arrays_come_back_as_they_went(array: np.ndarray) -> None:
    data = FREE.write({"a": array}, [])
    got = FREE.read(data)["a"]
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert got.tobytes() == array.tobytes()
    assert got.flags.writeable


@given(st.lists(st.binary(max_size=9), max_size=5))
def test_bytes_come_back_as_they_went(elements: list[bytes]) -> None:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    assert FREE.read(FREE.write({"a": array}, []))["a"].tolist() == elements


@settings(deadline=None)
@given(hnp.arrays(np.float32, 5, elements=st.floats(width=32)))
def test_bfloat16_rounds_as_torch_does(array: np.ndarray) -> None:
    want = torch.from_numpy(array).to(torch.bfloat16)
    tensor = write(array, signature("BF16", [5]))
    got = torch.frombuffer(bytearray(tensor.data), dtype=torch.bfloat16)
    assert tensor.datatype == "BF16"
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_bfloat16_tensors_stay_what_they_are_without_a_signature() -> None:
    value = torch.tensor([1.5, -3.0], dtype=torch.bfloat16)
    tensor = write(value)
    assert tensor.datatype == "BF16"
    assert tensor.data == value.view(torch.int16).numpy().tobytes()


@pytest.mark.parametrize("value", [np.float64(1), np.ones(1), torch.ones(1, dtype=torch.float64)])
def test_arrays_of_another_dtype_are_cast_only_where_asked(value: Any) -> None:
    sig = signature("FP32", list(value.shape))
    with pytest.raises(BadResult) as caught:
        write(value, sig)
    assert caught.value.tensor == "a"
    assert write(value, sig, cast=True).datatype == "FP32"


def test_wanted_outputs_are_given_in_their_order() -> None:
    result = {"a": [1], "b": [2]}
    batch = TensorBatch.FromString(FREE.write(result, ["b", "a"]))
    assert [tensor.name for tensor in batch.tensors] == ["b", "a"]
    with pytest.raises(UnknownOutput, match="'c'"):
        FREE.write(result, ["c"])


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        FREE.read(data)
    except TensorError:
        return


@pytest.mark.parametrize("elements", [1, SMALL_BYTES])
def test_inputs_are_the_functions_own_and_use_a_buffer_that_may_be_written(elements: int) -> None:
    data = FREE.write({"a": np.arange(elements, dtype=np.float32)}, [])
    kept = bytes(data)
    for buffer in (data, memoryview(data), memoryview(bytearray(data))):
        array = FREE.read(buffer)["a"]
        array += 1
        assert array.tolist() == list(range(1, elements + 1))
    assert data == kept


def test_a_batch_is_rows_in_and_rows_out() -> None:
    data = FREE.write({"a": np.zeros((3, 2), dtype=np.float32)}, [])
    assert FREE.read(data, rows=3)["a"].shape == (3, 2)
    with pytest.raises(TensorError, match=r"'a' has shape \[3, 2\] in a batch of 4 rows"):
        FREE.read(data, rows=4)
    assert FREE.write({"a": np.zeros((3, 2))}, [], rows=3)
    for wrong in (np.zeros((2, 3)), np.float32(1)):
        with pytest.raises(BadResult, match="for a batch of 3 rows") as caught:
            FREE.write({"b": np.zeros(3), "a": wrong}, [], rows=3)
        assert caught.value.tensor == "a"
