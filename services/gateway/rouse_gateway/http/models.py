"""Health, metadata and inference over REST v2."""

from __future__ import annotations

import asyncio
from typing import Any

from rouse_common.errors import Unavailable
from rouse_common.telemetry import current_trace_id
from rouse_gateway.http import infer
from rouse_gateway.http.callers import caller_of
from rouse_gateway.http.messages import Reply, Request
from rouse_gateway.http.plain import plain
from rouse_gateway.oip import models
from rouse_gateway.oip.inferences import Inferences
from rouse_gateway.state import Routes

# More JSON is parsed, and more tensors are written as JSON, beside the event loop.
JSON_HERE = 32 << 10
RETRY_AFTER_S = 1.0


def document(content: dict[str, Any] | list[Any]) -> Reply:
    """A JSON document."""
    return Reply([infer.dump(content)])


def model_of(request: Request) -> tuple[str, str]:
    """Model and version of a path; "" is whichever gets the traffic."""
    return request.values["model"], request.values.get("version", "")


class Models:
    """Handlers of what the protocol requires.

    Args:
        mesh_version: answered as the server's version.
    """

    def __init__(self, routes: Routes, inferences: Inferences, mesh_version: str) -> None:
        self._routes = routes
        self._inferences = inferences
        self._mesh_version = mesh_version

    async def server(self, request: Request) -> Reply:
        return document(plain(models.server_metadata(self._mesh_version)))

    async def live(self, request: Request) -> Reply:
        return document({"live": True})

    async def ready(self, request: Request) -> Reply:
        """Raises Unavailable NOT_READY."""
        self._routes.loaded_table()
        return document({"ready": True})

    async def model(self, request: Request) -> Reply:
        """A model's tensors and versions. Raises NotFound."""
        return document(plain(models.metadata(self._routes.loaded_table(), *model_of(request))))

    async def model_ready(self, request: Request) -> Reply:
        """Ready means that a request will be served, also where it has to wake the function first.
        Raises NotFound, Unavailable MODEL_NOT_READY."""
        name, number = model_of(request)
        table = self._routes.loaded_table()
        table.version(name, number)
        if not models.is_ready(table, name, number):
            raise Unavailable(
                "MODEL_NOT_READY",
                f"model '{name}' is not ready: {table.route(name).reason or 'it is being deleted'}",
                retry_after_s=RETRY_AFTER_S,
                function=name,
            )
        return document({"name": name, "ready": True})

    async def infer(self, request: Request) -> Reply:
        """One inference."""
        name, number = model_of(request)
        header_length = request.header(infer.HEADER_LENGTH)
        given = (name, number, request.body, header_length)
        size = int(header_length) if header_length and header_length.isdecimal() else len(request.body)
        asked, form = await asyncio.to_thread(infer.read, *given) if size > JSON_HERE else infer.read(*given)
        infer.check_outputs(self._routes.loaded_table().version(name, number), asked, form)
        reply = await self._inferences.infer(asked, caller_of(request))
        answer = (reply, asked, form, current_trace_id())
        if not form.binary and sum(len(tensor.data) for tensor in reply.outputs) > JSON_HERE:
            return await asyncio.to_thread(infer.write, *answer)
        return infer.write(*answer)
