"""The body of an inference: JSON with or without binary tensors, to a Call and from an Answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rouse_common.errors import InvalidArgument
from rouse_contracts.wire import Buffer
from rouse_gateway.dispatch import Answer
from rouse_gateway.http import data
from rouse_gateway.http.errors import bad_request
from rouse_gateway.http.messages import BINARY, Reply
from rouse_gateway.state import Version
from rouse_gateway.wire import TensorView

HEADER_LENGTH = b"inference-header-content-length"
TRACE_PARAMETER = "rouse_trace_id"
MAX_TENSORS = 1000
MAX_ID_CHARS = 1024


@dataclass(frozen=True, slots=True)
class Output:
    """A requested output.

    Args:
        binary: whether its data travels behind the JSON, as bytes.
    """

    name: str
    binary: bool
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Inference:
    """A request's body, understood but not checked against any function.

    Args:
        outputs: those asked for; empty: all, binary where `binary`.
        parameters: of the request.
        input_parameters: of each input, in their order.
    """

    id: str
    inputs: list[TensorView]
    input_parameters: list[Mapping[str, Any]]
    outputs: list[Output]
    binary: bool
    parameters: Mapping[str, Any]


def load(text: Buffer) -> dict[str, Any]:
    """A JSON object. Raises InvalidArgument MALFORMED_REQUEST."""
    try:
        said = str(text, "utf-8")
        document = json.loads(said)
        if "\\u" in said:  # half of a surrogate pair is no text, and cannot be passed on
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise bad_request("the body has half of a surrogate pair in a string") from None
    except ValueError as error:
        raise bad_request(f"the body is no JSON: {error}") from None
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None
    if type(document) is not dict:
        raise bad_request("the body is no JSON object")
    return document


def split(body: bytes, header_length: str | None) -> tuple[Buffer, memoryview]:
    """The JSON of a body, and the binary data behind it. Raises InvalidArgument MALFORMED_REQUEST."""
    if header_length is None:
        return body, memoryview(b"")
    if not (header_length.isascii() and header_length.isdigit() and int(header_length[:20]) <= len(body)):
        raise bad_request(
            f"Inference-Header-Content-Length is {header_length[:20]!r}: want the length of the JSON, of the "
            f"{len(body)} bytes of the body"
        )
    view = memoryview(body)
    return view[: int(header_length)], view[int(header_length) :]


def read(body: bytes, header_length: str | None) -> Inference:
    """A body of …/infer. Raises InvalidArgument."""
    text, blob = split(body, header_length)
    document = load(text)
    parameters = _parameters(document, "the request")
    blobs = _Blobs(blob)
    inputs, input_parameters = [], []
    for entry in _entries(document, "inputs", required=True):
        tensor, own = _input(entry, blobs)
        inputs.append(tensor)
        input_parameters.append(own)
    blobs.check_used()
    binary = _flag(parameters, "binary_data_output", "the request")
    outputs = [_output(entry, binary) for entry in _entries(document, "outputs", required=False)]
    request_id = document.get("id", "")
    if type(request_id) is not str or len(request_id) > MAX_ID_CHARS:
        raise bad_request(f"id: want a string of at most {MAX_ID_CHARS} characters")
    return Inference(request_id, inputs, input_parameters, outputs, binary, parameters)


class _Blobs:
    """The binary data of a request, taken from its front."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._taken = 0

    def take(self, name: str, size: Any) -> memoryview:
        if type(size) is not int or size < 0:
            raise _bad_input(name, "binary_data_size: want the number of bytes")
        end = self._taken + size
        if end > len(self._view):
            raise _bad_input(
                name, f"binary_data_size says {size} bytes, {len(self._view) - self._taken} are left in the body"
            )
        view = self._view[self._taken : end]
        self._taken = end
        return view

    def check_used(self) -> None:
        left = len(self._view) - self._taken
        if left:
            raise bad_request(f"{left} bytes of binary data belong to no input", "BAD_CONTENTS")


def _entries(document: Mapping[str, Any], key: str, *, required: bool) -> Iterator[Mapping[str, Any]]:
    entries = document.get(key)
    if entries is None and not required:
        return
    if type(entries) is not list or len(entries) > MAX_TENSORS:
        raise bad_request(f"{key}: want a list of at most {MAX_TENSORS} tensors")
    for entry in entries:
        if type(entry) is not dict or type(entry.get("name")) is not str:
            raise bad_request(f"{key}: each is an object with a name")
        yield entry


def _input(entry: Mapping[str, Any], blobs: _Blobs) -> tuple[TensorView, Mapping[str, Any]]:
    name, datatype, shape = entry["name"], entry.get("datatype"), entry.get("shape")
    if type(datatype) is not str:
        raise _bad_input(name, "datatype: want a string, as FP32")
    if type(shape) is not list or any(type(size) is not int for size in shape):
        raise _bad_input(name, "shape: want a list of whole numbers")
    parameters = _parameters(entry, f"input '{name[:80]}'")
    if "binary_data_size" in parameters:
        if "data" in entry:
            raise _bad_input(name, "has data beside binary data; send one of them")
        content: Buffer = blobs.take(name, parameters["binary_data_size"])
    elif "data" in entry:
        content = data.pack(name, datatype, shape, entry["data"])
    elif "shared_memory_region" in parameters:
        content = b""
    else:
        raise _bad_input(name, "has no data")
    return TensorView(name, datatype, tuple(shape), content), parameters


def _output(entry: Mapping[str, Any], default: bool) -> Output:
    where = f"output '{entry['name'][:80]}'"
    parameters = _parameters(entry, where)
    return Output(entry["name"], _flag(parameters, "binary_data", where, default), parameters)


def _parameters(entry: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise bad_request(f"parameters of {where}: want an object")
    return parameters


def _flag(parameters: Mapping[str, Any], key: str, where: str, default: bool = False) -> bool:
    value = parameters.get(key, default)
    if type(value) is not bool:
        raise bad_request(f"parameter {key} of {where}: want true or false")
    return value


def _bad_input(name: str, text: str) -> InvalidArgument:
    return bad_request(f"input '{name[:80]}' {text}", "BAD_CONTENTS", tensor=name[:80])


def check_outputs(version: Version, inference: Inference) -> None:
    """Refuses, before anything runs, outputs that JSON cannot carry. Raises InvalidArgument NOT_JSON."""
    if inference.outputs:
        asked = {output.name for output in inference.outputs if not output.binary}
    else:
        asked = set() if inference.binary else set(version.outputs)
    if asked:
        for spec in version.contract.spec.signature.outputs:
            if spec.datatype in data.BINARY_ONLY and spec.name in asked:
                raise data.not_json(spec.name, f"has the datatype {spec.datatype}, which has no JSON form")


def write(answer: Answer, inference: Inference, trace_id: str) -> Reply:
    """The answer, with each output in the form that was asked for. Raises InvalidArgument NOT_JSON."""
    binary = {output.name: output.binary for output in inference.outputs}
    blobs: list[Buffer] = []
    outputs = []
    for tensor in answer.outputs:
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if binary.get(tensor.name, inference.binary):
            entry["parameters"] = {"binary_data_size": len(tensor.data)}
            blobs.append(tensor.data)
        else:
            entry["data"] = data.unpack(tensor.name, tensor.datatype, tensor.data)
        outputs.append(entry)
    head: dict[str, Any] = {"model_name": answer.version.function, "model_version": answer.version.number}
    if inference.id:
        head["id"] = inference.id
    if trace_id:
        head["parameters"] = {TRACE_PARAMETER: trace_id}
    head["outputs"] = outputs
    text = dump(head)
    if not any(map(len, blobs)) and not any("parameters" in entry for entry in outputs):
        return Reply([text])
    headers = ((HEADER_LENGTH, str(len(text)).encode()),)
    return Reply([text, *blobs], content_type=BINARY, headers=headers)


def dump(document: dict[str, Any] | list[Any]) -> bytes:
    """JSON that every parser takes: what is not finite stands there by its name."""
    try:
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(document), separators=(",", ":"), allow_nan=False).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return data.named(value) if value and type(value[0]) is not dict else [_finite(entry) for entry in value]
    return data.named([value])[0]
