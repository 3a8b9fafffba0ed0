"""What users give as inputs, as tensors of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rouse.errors import InvalidArgument
from rouse.types import TensorSpec
from rouse_contracts.arrays import DTYPES, to_tensor
from rouse_contracts.functions import Tensor
from rouse_contracts.tensors import TensorError


def has_dtype(value: Any) -> bool:
    """False for lists and plain Python values, which take the datatype of the function's signature."""
    return hasattr(value, "dtype")


def encode(name: str, value: Any, spec: TensorSpec | None) -> Tensor:
    """An array, torch tensor, list or scalar as a tensor.

    What has a dtype keeps it; anything else takes the datatype of `spec`. Raises InvalidArgument BAD_TENSOR.
    """
    try:
        if not has_dtype(value):
            return _from_plain(name, value, spec.datatype if spec else None)
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            if str(value.dtype) == "torch.bfloat16":
                return _bfloat16(name, value.float().numpy())
        array = np.asarray(value)
        if array.dtype.name == "bfloat16":
            return _bfloat16(name, array.astype(np.float32))
        return to_tensor(name, array)
    except (TensorError, ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(
            f"input '{name}' cannot be sent: {error}", reason="BAD_TENSOR", metadata={"tensor": name}
        ) from None


def encode_all(inputs: Mapping[str, Any], specs: Mapping[str, TensorSpec]) -> list[Tensor]:
    return [encode(name, value, specs.get(name)) for name, value in inputs.items()]


def _from_plain(name: str, value: Any, datatype: str | None) -> Tensor:
    if datatype == "BF16":
        return _bfloat16(name, np.asarray(value, dtype=np.float32))
    if datatype == "BYTES":
        return to_tensor(name, np.asarray(value, dtype=object))
    array = np.asarray(value)
    if datatype is None:
        return to_tensor(name, array)
    if array.dtype.kind not in "biuf":
        raise TensorError(f"the function takes {datatype}, these values are {array.dtype.name}")
    want = DTYPES[datatype]
    cast = array.astype(want)
    # 1.5 for an integer, 300 for a UINT8: refused, as nobody means what a cast makes of them.
    if want.kind in "biu" and array.size and not np.array_equal(cast, array):
        raise TensorError(f"some values do not fit {datatype}")
    return to_tensor(name, cast)


def _bfloat16(name: str, array: np.ndarray) -> Tensor:
    """The upper halves of float32, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4").astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    quiet = np.where(np.isnan(array), np.uint16(0x7FC0), rounded).astype("<u2")
    return Tensor(name=name, datatype="BF16", shape=array.shape, data=quiet.tobytes())
