"""What models of Triton's Python backend import as `triton_python_backend_utils`, as far as Rouse has it.

Names and behaviour follow https://github.com/triton-inference-server/python_backend; what is not here (calls of
other models, metrics, model loading) raises TritonModelException that says so.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from rouse_contracts.tensors import iterate_bytes
from rouse_runtime.request import Request

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

TYPES: dict[str, Any] = {
    "TYPE_BOOL": np.bool_, "TYPE_UINT8": np.uint8, "TYPE_UINT16": np.uint16, "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64, "TYPE_INT8": np.int8, "TYPE_INT16": np.int16, "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64, "TYPE_FP16": np.float16, "TYPE_FP32": np.float32, "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_, "TYPE_BF16": np.float32,
}  # fmt: skip


class TritonModelException(Exception):
    """What the Python backend raises."""


class TritonError:
    """An error as part of a response."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = str(message), code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class Tensor:
    """A named array."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, np.asarray(array)

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def triton_dtype(self) -> str:
        return numpy_to_triton_type(self._array.dtype)

    def is_cpu(self) -> bool:
        return True

    def to_dlpack(self) -> Any:
        return self._array.__dlpack__()

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[Any, Any]:
        return self._array.__dlpack_device__()

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor over what another library made; it has to be an object with __dlpack__."""
        if not hasattr(tensor, "__dlpack__"):
            raise TritonModelException("from_dlpack() takes an array or a tensor here, not a capsule")
        return Tensor(name, np.from_dlpack(tensor))


class InferenceResponse:
    """What a model answers to one request."""

    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | str | None = None, parameters: Any = None
    ) -> None:
        self._tensors = list(output_tensors)
        self._error = TritonError(error) if isinstance(error, str) else error
        self._parameters = parameters

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        return json.dumps(self._parameters or {})


class InferenceRequest:
    """One request, as `execute` gets it."""

    def __init__(
        self, inputs: dict[str, np.ndarray], outputs: list[str], request: Request, sender: Callable[[], Any]
    ) -> None:
        self._inputs = [Tensor(name, array) for name, array in inputs.items()]
        self._outputs, self._request, self._sender = outputs, request, sender

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._request.id

    def correlation_id(self) -> int | str:
        """The sequence's: a number where it is one, 0 outside of any."""
        text = self._request.sequence.id if self._request.sequence else "0"
        return int(text) if text.isascii() and text.isdigit() else text

    def flags(self) -> int:
        sequence = self._request.sequence
        if sequence is None:
            return 0
        return (TRITONSERVER_REQUEST_FLAG_SEQUENCE_START if sequence.start else 0) | (
            TRITONSERVER_REQUEST_FLAG_SEQUENCE_END if sequence.end else 0
        )

    def requested_output_names(self) -> list[str]:
        return list(self._outputs)

    def parameters(self) -> str:
        return json.dumps(dict(self._request.parameters))

    def timeout(self) -> int:
        """Microseconds that are left."""
        return int(self._request.time_left_s * 1e6)

    def is_cancelled(self) -> bool:
        return self._request.cancelled

    def get_response_sender(self) -> Any:
        """Raises TritonModelException where the model is not decoupled."""
        return self._sender()

    def exec(self, decoupled: bool = False) -> NoReturn:
        _missing("calling another model out of a model")

    async_exec = exec


class Logger:
    """Log lines of the function."""

    ERROR, WARNING, WARN, INFO, VERBOSE = "error", "warning", "warning", "info", "debug"
    _log = logging.getLogger("function")

    @classmethod
    def log(cls, message: str, level: str = INFO) -> None:
        cls._log.log(getattr(logging, level.upper()), "%s", message)

    @classmethod
    def log_info(cls, message: str) -> None:
        cls._log.info("%s", message)

    @classmethod
    def log_warn(cls, message: str) -> None:
        cls._log.warning("%s", message)

    @classmethod
    def log_error(cls, message: str) -> None:
        cls._log.error("%s", message)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        cls._log.debug("%s", message)


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return _named(request.inputs(), name)


def get_output_tensor_by_name(response: InferenceResponse, name: str) -> Tensor | None:
    return _named(response.output_tensors(), name)


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((entry for entry in model_config.get("input", ()) if entry["name"] == name), None)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((entry for entry in model_config.get("output", ()) if entry["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_to_numpy_type(data_type: int | str) -> Any:
    """The numpy type of a number or name of a Triton type."""
    return list(TYPES.values())[data_type - 1] if isinstance(data_type, int) else TYPES[data_type]


def triton_string_to_numpy(name: str) -> Any:
    """The numpy type of "TYPE_FP32" and the like."""
    return TYPES[name]


def numpy_to_triton_type(data_type: Any) -> str:
    kind = np.dtype(data_type)
    if kind.kind in "OSU":
        return "TYPE_STRING"
    return next(name for name, known in TYPES.items() if kind == known)


def serialize_byte_tensor(array: np.ndarray) -> np.ndarray:
    """Bytes elements as one buffer: each a 4-byte length and its bytes."""
    elements = [e if isinstance(e, bytes) else str(e).encode() for e in array.ravel().tolist()]
    return np.frombuffer(b"".join(struct.pack("<I", len(e)) + e for e in elements), dtype=np.uint8)


def deserialize_bytes_tensor(encoded: Any) -> np.ndarray:
    """The reverse of serialize_byte_tensor, as a flat array."""
    elements = list(iterate_bytes("", bytes(encoded)))
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def __getattr__(name: str) -> Any:
    """Raises TritonModelException for what Triton has and this has not."""
    if name in ("ModelConfig", "MetricFamily", "PreferredMemory", "load_model", "unload_model", "is_model_ready"):
        _missing(name)
    raise AttributeError(f"module 'triton_python_backend_utils' has no attribute '{name}'")


def _named(tensors: Sequence[Tensor], name: str) -> Tensor | None:
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def _missing(what: str) -> NoReturn:
    raise TritonModelException(f"{what} is not supported by Rouse")
