"""The body of an inference: JSON with or without binary tensors, to a Request and from a Reply."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rouse_common.errors import InvalidArgument
from rouse_contracts.wire import Buffer
from rouse_gateway import protocol
from rouse_gateway.http import data, messages
from rouse_gateway.http.errors import bad_request
from rouse_gateway.http.messages import BINARY
from rouse_gateway.oip import parameters
from rouse_gateway.oip.parameters import Value
from rouse_gateway.oip.requests import (
    OFFSET,
    REGION,
    SIZE,
    PlacedTensor,
    Reply,
    Request,
    Wanted,
    read_place,
    read_wanted,
)
from rouse_gateway.state import Version
from rouse_gateway.wire import TensorView

HEADER_LENGTH = b"inference-header-content-length"
BINARY_SIZE = "binary_data_size"
MAX_TENSORS = 1000
MAX_ID_CHARS = 1024
WHOLE = range(-(1 << 63), 1 << 64)


@dataclass(frozen=True, slots=True)
class Form:
    """How outputs are wanted: as binary data behind the JSON, or in it.

    Args:
        binary: of those that are not in `of`.
        of: by name.
    """

    binary: bool
    of: Mapping[str, bool]

    def is_binary(self, name: str) -> bool:
        return self.of.get(name, self.binary)


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


def read(model: str, version: str, body: bytes, header_length: str | None) -> tuple[Request, Form]:
    """A body of …/infer. Raises InvalidArgument."""
    text, blob = split(body, header_length)
    document = load(text)
    given = values(document, "the request")
    blobs = _Blobs(blob)
    inputs = [_input(model, entry, blobs) for entry in _entries(document, "inputs", required=True)]
    blobs.check_used()
    binary = _flag(given, "binary_data_output", "the request")
    forms: dict[str, bool] = {}
    outputs: list[Wanted] = []
    for entry in _entries(document, "outputs", required=False):
        name, where = entry["name"], f"output '{entry['name'][:80]}'"
        own = values(entry, where)
        forms[name] = _flag(own, "binary_data", where, binary)
        outputs.append(read_wanted(model, name, own))
    read_parameters = parameters.read(model, given)
    return Request(model, version, read_id(document), inputs, outputs, read_parameters), Form(binary, forms)


def read_id(document: Mapping[str, Any]) -> str:
    """The request's id; empty where it has none. Raises InvalidArgument."""
    found = document.get("id", "")
    if type(found) is not str or len(found) > MAX_ID_CHARS:
        raise bad_request(f"id: want a string of at most {MAX_ID_CHARS} characters")
    return found


class _Blobs:
    """The binary data of a request, taken from its front."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._taken = 0

    def take(self, name: str, size: Value) -> memoryview:
        if type(size) is not int or size < 0:
            raise _bad_input(name, f"{BINARY_SIZE}: want the number of bytes")
        end = self._taken + size
        if end > len(self._view):
            raise _bad_input(
                name, f"{BINARY_SIZE} says {size} bytes, {len(self._view) - self._taken} are left in the body"
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


def _input(model: str, entry: Mapping[str, Any], blobs: _Blobs) -> TensorView | PlacedTensor:
    name, datatype, shape = entry["name"], entry.get("datatype"), entry.get("shape")
    if type(datatype) is not str:
        raise _bad_input(name, "datatype: want a string, as FP32")
    if type(shape) is not list or any(type(size) is not int for size in shape):
        raise _bad_input(name, "shape: want a list of whole numbers")
    given = values(entry, f"input '{name[:80]}'")
    sources = [key for key, there in (("data", entry), (BINARY_SIZE, given), (REGION, given)) if key in there]
    if len(sources) != 1:
        raise _bad_input(name, f"has {' beside '.join(sources) or 'no data'}; send its data once")
    place = read_place(model, name[:80], given)
    if place is not None:
        return PlacedTensor(name, datatype, tuple(shape), place)
    if "data" in entry:
        return TensorView(name, datatype, tuple(shape), data.pack(name, datatype, shape, entry["data"]))
    return TensorView(name, datatype, tuple(shape), blobs.take(name, given[BINARY_SIZE]))


def values(entry: Mapping[str, Any], where: str) -> dict[str, Value]:
    """The parameters of a request, an input or an output; null is none. Raises InvalidArgument."""
    given = entry.get("parameters")
    if given is None:
        return {}
    if type(given) is not dict:
        raise bad_request(f"parameters of {where}: want an object")
    return {name: value_of(name, value, where) for name, value in given.items() if value is not None}


def value_of(name: str, value: Any, where: str) -> Value:
    """A parameter's value. Raises InvalidArgument BAD_PARAMETER."""
    if not isinstance(value, bool | int | float | str) or (type(value) is int and value not in WHOLE):
        raise bad_request(
            f"parameter {name[:80]} of {where}: want a boolean, a number of 64 bits or a string",
            "BAD_PARAMETER",
            parameter=name[:80],
        )
    return value


def _flag(given: Mapping[str, Value], key: str, where: str, default: bool = False) -> bool:
    value = given.get(key, default)
    if type(value) is not bool:
        raise bad_request(f"parameter {key} of {where}: want true or false", "BAD_PARAMETER", parameter=key)
    return value


def _bad_input(name: str, text: str) -> InvalidArgument:
    return bad_request(f"input '{name[:80]}' {text}", "BAD_CONTENTS", tensor=name[:80])


def check_outputs(version: Version, request: Request, form: Form) -> None:
    """Refuses, before anything runs, outputs that JSON cannot carry. Raises InvalidArgument NOT_JSON."""
    wanted = {output.name: output for output in request.outputs}
    for spec in version.contract.spec.signature.outputs:
        if spec.datatype not in data.BINARY_ONLY or form.is_binary(spec.name) or (wanted and spec.name not in wanted):
            continue
        output = wanted.get(spec.name)
        if output is None or not (output.classes or output.place):
            raise data.not_json(spec.name, f"has the datatype {spec.datatype}, which has no JSON form")


def write(reply: Reply, request: Request, form: Form, trace_id: str) -> messages.Reply:
    """The answer, with each output in the form that was asked for. Raises InvalidArgument NOT_JSON."""
    blobs: list[Buffer] = []
    outputs = []
    binary = False
    for tensor in reply.outputs:
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        place = reply.placed.get(tensor.name)
        if place is not None:
            entry["parameters"] = {REGION: place.region, OFFSET: place.offset, SIZE: place.size}
        elif form.is_binary(tensor.name):
            entry["parameters"] = {BINARY_SIZE: len(tensor.data)}
            blobs.append(tensor.data)
            binary = True
        else:
            entry["data"] = data.unpack(tensor.name, tensor.datatype, tensor.data)
        outputs.append(entry)
    version = reply.answer.version
    head: dict[str, Any] = {"model_name": version.function, "model_version": version.number}
    if request.id:
        head["id"] = request.id
    if trace_id:
        head["parameters"] = {protocol.TRACE_PARAMETER: trace_id}
    head["outputs"] = outputs
    text = dump(head)
    if not binary:
        return messages.Reply([text], compressible=True)
    headers = ((HEADER_LENGTH, str(len(text)).encode()),)
    return messages.Reply([text, *blobs], content_type=BINARY, headers=headers, compressible=True)


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
