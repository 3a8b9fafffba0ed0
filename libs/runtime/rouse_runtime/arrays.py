"""Between tensors as they travel and what user code takes and returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rouse_contracts import arrays
from rouse_contracts.functions import Signature, TensorBatch
from rouse_contracts.tensors import TensorError, check_signature
from rouse_contracts.views import BATCH_TENSORS, TensorView, parse_batch, tensor_parts
from rouse_contracts.wire import Buffer
from rouse_runtime.failures import BadResult, UnknownOutput

# Up to this size the generated class is faster, copies and all.
SMALL_BYTES = 16 << 10


class Codec:
    """Reads the inputs and writes the outputs of one version; what its signature says is looked up once.

    Args:
        signature: of the version; where it is empty, anything goes.
        casts: whether arrays of another dtype than the signature's are converted; lists always are.
    """

    def __init__(self, signature: Signature, casts: bool) -> None:
        self._inputs = {spec.name: (spec.datatype, tuple(spec.shape)) for spec in signature.inputs}
        self._outputs = {spec.name: (spec.datatype, tuple(spec.shape)) for spec in signature.outputs}
        self._names = list(self._outputs)
        self._casts = casts

    def read(self, data: Buffer, rows: int = 0) -> dict[str, np.ndarray]:
        """A serialised TensorBatch as writable numpy arrays by name.

        Args:
            rows: first size that every tensor has to have; 0 is any.

        Raises TensorError where the batch contradicts itself, the signature or `rows`.
        """
        inputs: dict[str, np.ndarray] = {}
        for tensor in _views(data):
            name = tensor.name
            if name in inputs:
                raise TensorError(f"tensor '{name}' is given twice")
            if self._inputs:
                spec = self._inputs.get(name)
                if spec is None:
                    raise TensorError(f"tensor '{name}' is not an input; the inputs are {', '.join(self._inputs)}")
                check_signature(name, tensor.datatype, tensor.shape, *spec)
            if rows and tensor.shape[:1] != (rows,):
                raise TensorError(f"tensor '{name}' has shape {list(tensor.shape)} in a batch of {rows} rows")
            array = arrays.to_array(tensor)
            usable = array.flags.writeable and array.flags.aligned
            inputs[name] = array if usable else array.copy()
        return inputs

    def write(self, result: Any, wanted: list[str], rows: int = 0) -> bytes:
        """What a function gave as a serialised TensorBatch of the wanted outputs (all where none are named).

        Args:
            result: names to array-likes: numpy arrays, torch tensors, lists or numbers.
            rows: first size that every output has to have; 0 is any.

        Raises BadResult naming the tensor, UnknownOutput where a wanted name does not exist.
        """
        if not isinstance(result, Mapping):
            raise BadResult("", f"predict() returned {type(result).__name__}, want a dict of names to arrays")
        tensors = [self._tensor(name, result[name]) for name in self._choose(result, wanted)]
        for tensor in tensors:
            if rows and tensor.shape[:1] != (rows,):
                raise BadResult(
                    tensor.name,
                    f"predict() returned '{tensor.name}' with shape {list(tensor.shape)} for a batch of {rows} rows; "
                    "the first size of every output of a batchable function is that of its inputs",
                )
        return b"".join(tensor_parts(tensors, BATCH_TENSORS))

    def _choose(self, result: Mapping[Any, Any], wanted: list[str]) -> Iterable[str]:
        specs = self._outputs
        for name in result:
            if not isinstance(name, str):
                raise BadResult(str(name), f"predict() returned an output named {name!r}, names are strings")
            if specs and name not in specs:
                raise BadResult(
                    name, f"predict() returned '{name}', which is not an output; they are {', '.join(specs)}"
                )
        known = self._names or list(result)
        for name in wanted:
            if name not in known:
                raise UnknownOutput(f"there is no output '{name}'; the function has {', '.join(known)}")
        for name in specs:
            if name not in result:
                raise BadResult(name, f"predict() returned no '{name}', which the signature names as an output")
        return wanted or known

    def _tensor(self, name: str, value: Any) -> TensorView:
        spec = self._outputs.get(name)
        try:
            datatype = spec[0] if spec else _datatype(value)
            tensor = _bfloat16(name, value) if datatype == "BF16" else _encode(name, value, datatype, self._casts)
        except TensorError as error:
            raise BadResult(name, f"predict() returned a wrong '{name}': {error}") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise BadResult(name, f"predict() returned a '{name}' that cannot be made an array: {error}") from error
        if spec:
            _check(tensor, *spec)
        return tensor


def _views(data: Buffer) -> list[TensorView]:
    try:
        if len(data) > SMALL_BYTES:
            return parse_batch(data)
        batch = TensorBatch.FromString(bytes(data))
    except DecodeError as error:
        raise TensorError(f"the inputs are not a TensorBatch: {error}") from error
    return [TensorView(tensor.name, tensor.datatype, tuple(tensor.shape), tensor.data) for tensor in batch.tensors]


def _check(tensor: TensorView, datatype: str, shape: tuple[int, ...]) -> None:
    name = tensor.name
    if tensor.datatype != datatype:
        raise BadResult(
            name,
            f"predict() returned '{name}' with datatype {tensor.datatype}, the signature says {datatype}; "
            "convert it, as with .astype() or .to()",
        )
    fits = len(tensor.shape) == len(shape) and all(
        want in (-1, size) for size, want in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        raise BadResult(
            name,
            f"predict() returned '{name}', which has shape {list(tensor.shape)}, the signature says "
            f"{list(shape)} (-1: any size)",
        )


def _datatype(value: Any) -> str:
    return "BF16" if str(getattr(value, "dtype", "")) == "torch.bfloat16" else ""


def _encode(name: str, value: Any, datatype: str, cast: bool) -> TensorView:
    has_dtype = hasattr(value, "dtype")
    array = _numpy(value)
    want = arrays.DTYPES.get(datatype)
    if want is not None and array.dtype != want and (cast or not has_dtype):
        if array.dtype.kind in "OSU":
            raise TensorError(f"its elements are {array.dtype}, the function gives {datatype}")
        array = array.astype(want)
    return arrays.to_view(name, array)


def _numpy(value: Any) -> np.ndarray:
    """Any array-like as a numpy array; torch tensors come off their device, bfloat16 widens to float32."""
    detach = getattr(value, "detach", None)
    if detach is None:
        return np.asarray(value)
    value = detach().cpu()
    if str(value.dtype) == "torch.bfloat16":
        value = value.float()
    return np.asarray(value.numpy())


def _bfloat16(name: str, value: Any) -> TensorView:
    """BF16 has no numpy dtype: the upper half of float32, rounded to nearest even."""
    array = _numpy(value)
    if array.dtype.kind not in "fiub":
        raise TensorError(f"its elements are {array.dtype}, the function gives BF16")
    wide = np.ascontiguousarray(array, dtype="<f4")
    bits = wide.view("<u4").astype("<u8")
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    rounded = np.where(np.isnan(wide), np.uint16(0x7FC0), rounded).astype("<u2")
    return TensorView(name, "BF16", array.shape, rounded.tobytes())
