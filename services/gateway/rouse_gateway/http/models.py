"""Health, metadata and inference over REST v2."""

from __future__ import annotations

import asyncio
from typing import Any

from rouse_common.errors import Unavailable
from rouse_common.telemetry import current_trace_id
from rouse_contracts.functions import (
    ARTEFACT_FORMAT_HUGGING_FACE,
    FUNCTION_STATE_DELETING,
    FUNCTION_STATE_FAILED,
    TensorSpec,
)
from rouse_gateway.dispatch import Call, Dispatcher
from rouse_gateway.http import infer
from rouse_gateway.http.messages import Reply, Request
from rouse_gateway.http.parameters import refuse_unsupported, timeout_of
from rouse_gateway.oip.models import EXTENSIONS, SERVER_NAME
from rouse_gateway.state import Routes

# More JSON is parsed, and more tensors are written as JSON, beside the event loop.
JSON_HERE = 32 << 10
RETRY_AFTER_S = 1.0


def reply(document: dict[str, Any] | list[Any]) -> Reply:
    """A JSON document."""
    return Reply([infer.dump(document)])


class Models:
    """Handlers of what the protocol requires.

    Args:
        default_timeout_s: time for a request that sets no deadline.
        mesh_version: answered as the server's version.
    """

    def __init__(self, routes: Routes, dispatcher: Dispatcher, default_timeout_s: float, mesh_version: str) -> None:
        self._routes = routes
        self._dispatcher = dispatcher
        self._default_timeout_s = default_timeout_s
        self._mesh_version = mesh_version

    async def server(self, request: Request) -> Reply:
        return reply({"name": SERVER_NAME, "version": self._mesh_version, "extensions": list(EXTENSIONS)})

    async def live(self, request: Request) -> Reply:
        return reply({"live": True})

    async def ready(self, request: Request) -> Reply:
        """Raises Unavailable NOT_READY."""
        self._routes.loaded_table()
        return reply({"ready": True})

    async def model(self, request: Request) -> Reply:
        """A model's tensors and versions. Raises NotFound."""
        name, number = request.values["model"], request.values.get("version", "")
        table = self._routes.loaded_table()
        version = table.version(name, number)
        numbers = [known for known in table.route(name).versions if known]
        hugging_face = version.contract.format == ARTEFACT_FORMAT_HUGGING_FACE
        signature = version.contract.spec.signature
        return reply(
            {
                "name": version.function,
                "versions": [version.number] if number else sorted(numbers, key=int),
                "platform": "rouse_hugging_face" if hugging_face else "rouse_python",
                "inputs": [_tensor(spec) for spec in signature.inputs],
                "outputs": [_tensor(spec) for spec in signature.outputs],
            }
        )

    async def model_ready(self, request: Request) -> Reply:
        """Ready means that a request will be served, also where it has to wake the function first.
        Raises NotFound, Unavailable MODEL_NOT_READY."""
        name, number = request.values["model"], request.values.get("version", "")
        table = self._routes.loaded_table()
        table.version(name, number)
        route = table.route(name)
        if route.state in (FUNCTION_STATE_FAILED, FUNCTION_STATE_DELETING):
            raise Unavailable(
                "MODEL_NOT_READY",
                f"model '{name}' is not ready: {route.reason or 'it is being deleted'}",
                retry_after_s=RETRY_AFTER_S,
                function=name,
            )
        return reply({"name": name, "ready": True})

    async def infer(self, request: Request) -> Reply:
        """One inference."""
        name, number = request.values["model"], request.values.get("version", "")
        header_length = request.header(infer.HEADER_LENGTH)
        json_bytes = int(header_length) if header_length and header_length.isdigit() else len(request.body)
        if json_bytes > JSON_HERE:
            inference = await asyncio.to_thread(infer.read, request.body, header_length)
        else:
            inference = infer.read(request.body, header_length)
        timeout_s = timeout_of(request, name, inference.parameters, self._default_timeout_s)
        refuse_unsupported(name, inference)
        version = self._routes.loaded_table().version(name, number)
        infer.check_outputs(version, inference)
        call = Call(name, number, inference.inputs, [output.name for output in inference.outputs], timeout_s)
        answer = await self._dispatcher.infer(call)
        if not inference.binary and sum(len(tensor.data) for tensor in answer.outputs) > JSON_HERE:
            return await asyncio.to_thread(infer.write, answer, inference, current_trace_id())
        return infer.write(answer, inference, current_trace_id())


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}
