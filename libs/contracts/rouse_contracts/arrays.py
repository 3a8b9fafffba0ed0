"""numpy arrays to and from tensors of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rouse_contracts.functions import Tensor, TensorBatch
from rouse_contracts.tensors import TensorError, check_data, iterate_bytes, join_bytes
from rouse_contracts.views import TensorView

DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
DATATYPES = {dtype: name for name, dtype in DTYPES.items()}


def to_tensor(name: str, array: np.ndarray) -> Tensor:
    """A numpy array as a tensor; strings and bytes become BYTES. Raises TensorError for other dtypes."""
    view = to_view(name, array)
    return Tensor(name=name, datatype=view.datatype, shape=view.shape, data=bytes(view.data))


def to_view(name: str, array: np.ndarray) -> TensorView:
    """As `to_tensor`, over the array's own memory where that is contiguous."""
    array = np.asarray(array)
    if array.dtype.kind in "OSU":
        elements = [_element(name, e) for e in array.ravel().tolist()]
        return TensorView(name, "BYTES", array.shape, join_bytes(elements))
    dtype = array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype
    if dtype not in DATATYPES:
        raise TensorError(f"tensor '{name}' has the numpy dtype {array.dtype}, which no datatype of the protocol holds")
    data = np.ascontiguousarray(array, dtype=dtype)
    return TensorView(name, DATATYPES[dtype], array.shape, data.reshape(-1).view(np.uint8).data)


def _element(name: str, element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode()
    raise TensorError(f"tensor '{name}' holds a {type(element).__name__}; an array of objects holds bytes or strings")


def to_array(tensor: Tensor | TensorView) -> np.ndarray:
    """A tensor as a read-only numpy array over the tensor's own bytes; BYTES become an object array of
    bytes, BF16 becomes float32. Raises TensorError where the tensor contradicts itself."""
    shape, data = tuple(tensor.shape), tensor.data  # read once: a generated class copies it every time
    check_data(tensor.name, tensor.datatype, shape, data)
    if tensor.datatype == "BYTES":
        elements = list(iterate_bytes(tensor.name, data))
        array = np.empty(len(elements), dtype=object)
        array[:] = elements
        return array.reshape(shape)
    if tensor.datatype == "BF16":
        high = np.frombuffer(data, dtype="<u2").astype("<u4") << 16
        return high.view("<f4").reshape(shape)
    return np.frombuffer(data, dtype=DTYPES[tensor.datatype]).reshape(shape)


def to_batch(arrays: Mapping[str, Any]) -> TensorBatch:
    """Named arrays as one batch, in their order."""
    return TensorBatch(tensors=[to_tensor(name, array) for name, array in arrays.items()])


def from_batch(batch: TensorBatch) -> dict[str, np.ndarray]:
    """A batch as named arrays. Raises TensorError, also where two tensors have one name."""
    names = [tensor.name for tensor in batch.tensors]
    if len(set(names)) != len(names):
        raise TensorError(f"two tensors have the same name, of {names}")
    return {tensor.name: to_array(tensor) for tensor in batch.tensors}
