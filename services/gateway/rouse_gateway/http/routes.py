"""Every path of the HTTP port."""

from __future__ import annotations

from importlib.resources import files

from rouse_gateway.http.app import Callers, RestApp
from rouse_gateway.http.generate import Generate
from rouse_gateway.http.limits import Budget, Limits
from rouse_gateway.http.manage import Manage
from rouse_gateway.http.messages import Reply, Request
from rouse_gateway.http.models import Models
from rouse_gateway.http.router import Handler, Route, Router
from rouse_gateway.oip.desk import Desk
from rouse_gateway.state import Routes

MODEL = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"


def make_router(routes: Routes, desk: Desk, mesh_version: str) -> Router:
    """All routes with their handlers."""
    models = Models(routes, desk.inferences, mesh_version)
    generate = Generate(routes, desk.inferences)
    manage = Manage(routes, desk)
    router = Router()

    def get(path: str, handler: Handler, *, open: bool = False) -> None:
        router.add(Route("GET", path, handler, open=open))

    def post(path: str, handler: Handler, span: str = "") -> None:
        router.add(Route("POST", path, handler, span))

    get("/openapi.json", describe, open=True)
    get("/v2", models.server, open=True)
    get("/v2/health/live", models.live, open=True)
    get("/v2/health/ready", models.ready, open=True)
    for path in MODEL:
        get(path, models.model)
        get(f"{path}/ready", models.model_ready)
        get(f"{path}/config", manage.config)
        get(f"{path}/stats", manage.statistics)
        post(f"{path}/infer", models.infer, "ModelInfer")
        post(f"{path}/generate", generate.one, "Generate")
        post(f"{path}/generate_stream", generate.stream, "GenerateStream")
    get("/v2/models/stats", manage.statistics)
    post("/v2/repository/index", manage.index)
    post("/v2/repository/models/{model}/load", manage.load, "RepositoryModelLoad")
    post("/v2/repository/models/{model}/unload", manage.unload, "RepositoryModelUnload")
    for at in (SYSTEM, f"{SYSTEM}/region/{{region}}"):
        get(f"{at}/status", manage.regions)
        post(f"{at}/unregister", manage.unregister)
    post(f"{SYSTEM}/region/{{region}}/register", manage.register)
    get(f"{CUDA}/status", manage.no_regions)
    get(f"{CUDA}/region/{{region}}/status", manage.no_cuda)
    for path in ("/unregister", "/region/{region}/unregister", "/region/{region}/register"):
        post(CUDA + path, manage.no_cuda)
    for path in ("/v2/trace/setting", "/v2/models/{model}/trace/setting"):
        get(path, manage.traces)
        post(path, manage.traces)
    get("/v2/logging", manage.logs)
    post("/v2/logging", manage.logs)
    return router


OPENAPI = Reply([files("rouse_gateway.http").joinpath("openapi.json").read_bytes()])


async def describe(request: Request) -> Reply:
    """The OpenAPI document of all of this."""
    return OPENAPI


def make_app(router: Router, limits: Limits, callers: Callers | None = None) -> RestApp:
    """The application over all its routes."""
    return RestApp(router, limits, Budget(limits.buffered_bytes), callers)
