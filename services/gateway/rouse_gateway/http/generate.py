"""The generate extension: a JSON object of plain values in, one out, or a stream of them as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from rouse_common.errors import RouseError
from rouse_contracts.functions import TensorSpec
from rouse_gateway.http import data, infer, messages
from rouse_gateway.http.callers import caller_of
from rouse_gateway.http.errors import bad_request, body_of
from rouse_gateway.http.messages import Stream
from rouse_gateway.oip import parameters
from rouse_gateway.oip.inferences import Inferences
from rouse_gateway.oip.parameters import Value
from rouse_gateway.oip.requests import Caller, Reply, Request
from rouse_gateway.state import Routes, Version
from rouse_gateway.wire import TensorView


class Generate:
    """Handlers of …/generate and …/generate_stream."""

    def __init__(self, routes: Routes, inferences: Inferences) -> None:
        self._routes = routes
        self._inferences = inferences

    async def one(self, request: messages.Request) -> messages.Reply:
        """The one response of a request. Raises Unimplemented NOT_ONE_RESPONSE where there are more, or none."""
        asked = self._read(request)
        reply = await self._inferences.infer(asked, caller_of(request))
        return messages.Reply([infer.dump(_document(reply, asked.id))], compressible=True)

    async def stream(self, request: messages.Request) -> Stream:
        """Every response, an event each."""
        return Stream(self._events(self._read(request), caller_of(request)))

    async def _events(self, asked: Request, caller: Caller) -> AsyncGenerator[bytes, None]:
        began = False
        async with aclosing(self._inferences.stream(asked, caller)) as replies:
            try:
                async for reply in replies:
                    yield _event(infer.dump(_document(reply, asked.id)))
                    began = True
            except RouseError as error:
                if not began:
                    raise  # it can still have a status of its own
                yield _event(body_of(error))

    def _read(self, request: messages.Request) -> Request:
        """Fields with the names of inputs are tensors, all others parameters; those of the object `parameters`,
        too. Raises InvalidArgument, NotFound."""
        model, number = request.values["model"], request.values.get("version", "")
        version = self._routes.loaded_table().version(model, number)
        document = infer.load(request.body)
        specs = {spec.name: spec for spec in version.contract.spec.signature.inputs}
        inputs: list[TensorView] = []
        given: dict[str, Value] = infer.values(document, "the request")
        for name, value in document.items():
            if name in specs:
                inputs.append(_tensor(specs[name], value))
            elif name not in ("id", "parameters") and value is not None:
                given[name] = infer.value_of(name, value, "the request")
        _check_outputs(version)
        asked = parameters.read(model, given)
        found = infer.read_id(document) if "id" not in specs else ""
        return Request(model, number, found, inputs, (), asked)


def _check_outputs(version: Version) -> None:
    for spec in version.contract.spec.signature.outputs:
        if spec.datatype in data.BINARY_ONLY:
            raise bad_request(
                f"output '{spec.name}' has the datatype {spec.datatype}, which has no JSON form: call infer, with "
                "binary_data_output",
                "NOT_JSON",
                tensor=spec.name,
            )


def _tensor(spec: TensorSpec, value: Any) -> TensorView:
    """A value, or a list of them, as a tensor of as many dimensions as the signature has: what is missing in
    front is 1."""
    shape: list[int] = []
    inner = value
    while type(inner) is list:
        shape.append(len(inner))
        inner = inner[0] if inner else None
    packed = data.pack(spec.name, spec.datatype, shape or [1], value if shape else [value])
    full = [1] * (len(spec.shape) - len(shape)) + shape
    return TensorView(spec.name, spec.datatype, tuple(full), packed)


def _document(reply: Reply, request_id: str) -> dict[str, Any]:
    version = reply.answer.version
    document: dict[str, Any] = {"model_name": version.function, "model_version": version.number}
    if request_id:
        document["id"] = request_id
    for tensor in reply.outputs:
        values = data.unpack(tensor.name, tensor.datatype, tensor.data)
        document[tensor.name] = values[0] if len(values) == 1 else values
    return document


def _event(text: bytes) -> bytes:
    return b"data: " + text + b"\n\n"
