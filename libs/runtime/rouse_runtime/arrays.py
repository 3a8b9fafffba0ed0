"""Between tensors as they travel and what user code takes and returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rouse_contracts import arrays
from rouse_contracts.functions import Signature, Tensor, TensorBatch, TensorSpec
from rouse_contracts.tensors import TensorError, check_signature
from rouse_runtime.failures import BadResult, UnknownOutput


def read_inputs(data: bytes, signature: Signature) -> dict[str, np.ndarray]:
    """A serialised TensorBatch as writable numpy arrays by name.

    Raises TensorError where the batch contradicts itself or the signature.
    """
    batch = TensorBatch()
    try:
        batch.ParseFromString(data)
    except DecodeError as error:
        raise TensorError(f"the inputs are not a TensorBatch: {error}") from error
    specs = {spec.name: spec for spec in signature.inputs}
    inputs: dict[str, np.ndarray] = {}
    for tensor in batch.tensors:
        if tensor.name in inputs:
            raise TensorError(f"tensor '{tensor.name}' is given twice")
        if specs:
            spec = specs.get(tensor.name)
            if spec is None:
                raise TensorError(f"tensor '{tensor.name}' is not an input; the inputs are {', '.join(specs)}")
            check_signature(tensor.name, tensor.datatype, tensor.shape, spec.datatype, spec.shape)
        array = arrays.to_array(tensor)
        inputs[tensor.name] = array if array.flags.writeable else array.copy()
    return inputs


def write_outputs(result: Any, signature: Signature, wanted: Iterable[str], cast: bool) -> bytes:
    """What a function returned as a serialised TensorBatch of the wanted outputs (all where there are none named).

    Args:
        result: names to array-likes: numpy arrays, torch tensors, lists or numbers.
        cast: whether arrays of another dtype than the signature's are converted; lists always are.

    Raises BadResult naming the tensor, UnknownOutput where a wanted name does not exist.
    """
    if not isinstance(result, Mapping):
        raise BadResult("", f"predict() returned {type(result).__name__}, want a dict of names to arrays")
    specs = {spec.name: spec for spec in signature.outputs}
    names = _names(result, specs, list(wanted))
    tensors = [_tensor(name, result[name], specs.get(name), cast) for name in names]
    return bytes(TensorBatch(tensors=tensors).SerializeToString())


def _names(result: Mapping[Any, Any], specs: Mapping[str, TensorSpec], wanted: list[str]) -> list[str]:
    for name in result:
        if not isinstance(name, str):
            raise BadResult(str(name), f"predict() returned an output named {name!r}, names are strings")
        if specs and name not in specs:
            raise BadResult(name, f"predict() returned '{name}', which is not an output; they are {', '.join(specs)}")
    known = list(specs) or list(result)
    for name in wanted:
        if name not in known:
            raise UnknownOutput(f"there is no output '{name}'; the function has {', '.join(known)}")
    for name in specs:
        if name not in result:
            raise BadResult(name, f"predict() returned no '{name}', which the signature names as an output")
    return wanted or known


def _tensor(name: str, value: Any, spec: TensorSpec | None, cast: bool) -> Tensor:
    try:
        datatype = spec.datatype if spec else _datatype(value)
        tensor = _bfloat16(name, value) if datatype == "BF16" else _encode(name, value, datatype, cast)
    except TensorError as error:
        raise BadResult(name, f"predict() returned a wrong '{name}': {error}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise BadResult(name, f"predict() returned a '{name}' that cannot be made an array: {error}") from error
    if spec:
        _check(tensor, spec)
    return tensor


def _check(tensor: Tensor, spec: TensorSpec) -> None:
    name = tensor.name
    if tensor.datatype != spec.datatype:
        raise BadResult(
            name,
            f"predict() returned '{name}' with datatype {tensor.datatype}, the signature says {spec.datatype}; "
            "convert it, as with .astype() or .to()",
        )
    fits = len(tensor.shape) == len(spec.shape) and all(
        want in (-1, size) for size, want in zip(tensor.shape, spec.shape, strict=True)
    )
    if not fits:
        raise BadResult(
            name,
            f"predict() returned '{name}', which has shape {list(tensor.shape)}, the signature says "
            f"{list(spec.shape)} (-1: any size)",
        )


def _datatype(value: Any) -> str:
    return "BF16" if str(getattr(value, "dtype", "")) == "torch.bfloat16" else ""


def _encode(name: str, value: Any, datatype: str, cast: bool) -> Tensor:
    has_dtype = hasattr(value, "dtype")
    array = _numpy(value)
    want = arrays.DTYPES.get(datatype)
    if want is not None and array.dtype != want and (cast or not has_dtype):
        if array.dtype.kind in "OSU":
            raise TensorError(f"its elements are {array.dtype}, the function gives {datatype}")
        array = array.astype(want)
    return arrays.to_tensor(name, array)


def _numpy(value: Any) -> np.ndarray:
    """Any array-like as a numpy array; torch tensors come off their device, bfloat16 widens to float32."""
    detach = getattr(value, "detach", None)
    if detach is None:
        return np.asarray(value)
    value = detach().cpu()
    if str(value.dtype) == "torch.bfloat16":
        value = value.float()
    return np.asarray(value.numpy())


def _bfloat16(name: str, value: Any) -> Tensor:
    """BF16 has no numpy dtype: the upper half of float32, rounded to nearest even."""
    array = _numpy(value)
    if array.dtype.kind not in "fiub":
        raise TensorError(f"its elements are {array.dtype}, the function gives BF16")
    wide = np.ascontiguousarray(array, dtype="<f4")
    bits = wide.view("<u4").astype("<u8")
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    rounded = np.where(np.isnan(wide), np.uint16(0x7FC0), rounded).astype("<u2")
    return Tensor(name=name, datatype="BF16", shape=array.shape, data=rounded.tobytes())
