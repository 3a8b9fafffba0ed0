"""Configuration, figures, the model repository, shared memory and settings over REST v2."""

from __future__ import annotations

from typing import Any

from rouse_common.errors import Unimplemented
from rouse_gateway.http import infer
from rouse_gateway.http.callers import caller_of
from rouse_gateway.http.errors import bad_request
from rouse_gateway.http.messages import Reply, Request
from rouse_gateway.http.models import document, model_of
from rouse_gateway.http.plain import plain
from rouse_gateway.oip import models
from rouse_gateway.oip.desk import Desk
from rouse_gateway.oip.settings import LogValue
from rouse_gateway.service.inference import MANAGE_TIMEOUT_S, NO_CUDA, STATISTICS_TIMEOUT_S
from rouse_gateway.state import Routes

EMPTY = Reply([b""])


class Manage:
    """Handlers of the extensions."""

    def __init__(self, routes: Routes, desk: Desk) -> None:
        self._routes = routes
        self._desk = desk

    # ---- Models ---------------------------------------------------------------------------------------

    async def config(self, request: Request) -> Reply:
        """As Triton's clients read it."""
        return document(plain(models.config(self._routes.loaded_table(), *model_of(request))))

    async def statistics(self, request: Request) -> Reply:
        """Of a version, a model, or all models."""
        timeout_s = min(STATISTICS_TIMEOUT_S, _time_left(request, STATISTICS_TIMEOUT_S))
        name = request.values.get("model", "")
        number = request.values.get("version", "")
        return document(plain(await self._desk.statistics.read(name, number, timeout_s)))

    async def index(self, request: Request) -> Reply:
        given = _body(request)
        ready = given.get("ready", False)
        if type(ready) is not bool:
            raise bad_request("ready: want true or false", "BAD_PARAMETER")
        return document([plain(row) for row in self._desk.repository.index(ready).models])

    async def load(self, request: Request) -> Reply:
        """Answers when the model has a ready instance."""
        parameters = infer.values(_body(request), "the request")
        await self._desk.repository.load(request.values["model"], parameters, _time_left(request, MANAGE_TIMEOUT_S))
        return EMPTY

    async def unload(self, request: Request) -> Reply:
        """Answers when the model's instances have stopped."""
        parameters = infer.values(_body(request), "the request")
        await self._desk.repository.unload(request.values["model"], parameters, _time_left(request, MANAGE_TIMEOUT_S))
        return EMPTY

    # ---- Shared memory --------------------------------------------------------------------------------

    async def regions(self, request: Request) -> Reply:
        """One region, or all."""
        found = self._desk.regions.status(caller_of(request).tenant, request.values.get("region", ""))
        return document([plain(found.regions[name]) for name in sorted(found.regions)])

    async def register(self, request: Request) -> Reply:
        given = _body(request)
        key, offset, size = given.get("key"), given.get("offset", 0), given.get("byte_size")
        if type(key) is not str:
            raise bad_request("key: want the name of the shared memory", "BAD_SHARED_MEMORY")
        for name, value in (("offset", offset), ("byte_size", size)):
            if type(value) is not int or not 0 <= value < 1 << 63:
                raise bad_request(f"{name}: want a number of bytes", "BAD_SHARED_MEMORY")
        assert type(size) is int
        self._desk.regions.register(caller_of(request).tenant, request.values["region"], key, offset, size)
        return EMPTY

    async def unregister(self, request: Request) -> Reply:
        """One region, or all of the caller."""
        self._desk.regions.unregister(caller_of(request).tenant, request.values.get("region", ""))
        return EMPTY

    async def no_regions(self, request: Request) -> Reply:
        """Of CUDA memory there are never any."""
        return document([])

    async def no_cuda(self, request: Request) -> Reply:
        raise Unimplemented("NOT_SERVED", f"CUDA shared memory is not served by Rouse: {NO_CUDA}")

    # ---- Settings -------------------------------------------------------------------------------------

    async def traces(self, request: Request) -> Reply:
        """Reads the settings of traces, and with POST changes them first."""
        model = request.values.get("model", "")
        if model:
            self._routes.loaded_table().route(model)
        given = {name: _texts(name, value) for name, value in _settings(request).items()}
        found = self._desk.traces.update(model, given)
        return document({name: values if name == "trace_level" else values[0] for name, values in found.items()})

    async def logs(self, request: Request) -> Reply:
        """Reads the settings of logs, and with POST changes them first."""
        given: dict[str, LogValue] = {}
        for name, value in _settings(request).items():
            if not isinstance(value, bool | int | str):
                raise bad_request(f"log setting '{name[:80]}': want a boolean, a number or a string", "BAD_SETTING")
            given[name] = value
        return document(dict(self._desk.logs.update(given)))


def _body(request: Request) -> dict[str, Any]:
    """A body that may be left out."""
    return infer.load(request.body) if request.body else {}


def _settings(request: Request) -> dict[str, Any]:
    return _body(request) if request.method == "POST" else {}


def _texts(name: str, value: Any) -> list[str]:
    """A trace setting as a list of strings; null stands for its default."""
    values = [] if value is None else value if type(value) is list else [value]
    if not all(isinstance(each, str) or type(each) is int for each in values):
        raise bad_request(f"trace setting '{name[:80]}': want a string, or a list of them", "BAD_SETTING")
    return [str(each) for each in values]


def _time_left(request: Request, default_s: float) -> float:
    left_s = caller_of(request).time_left_s
    return default_s if left_s is None else left_s
