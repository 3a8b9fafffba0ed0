"""Every path of the HTTP port."""

from __future__ import annotations

from rouse_gateway.http.app import Authenticate, RestApp
from rouse_gateway.http.limits import Budget, Limits
from rouse_gateway.http.models import Models
from rouse_gateway.http.router import Route, Router

MODEL = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")


def make_app(models: Models, limits: Limits, authenticate: Authenticate | None = None) -> RestApp:
    """The application with all its routes."""
    router = Router()
    router.add(Route("GET", "/v2", models.server, traced=False, open=True))
    router.add(Route("GET", "/v2/health/live", models.live, traced=False, open=True))
    router.add(Route("GET", "/v2/health/ready", models.ready, traced=False, open=True))
    for path in MODEL:
        router.add(Route("GET", path, models.model, traced=False))
        router.add(Route("GET", f"{path}/ready", models.model_ready, traced=False))
        router.add(Route("POST", f"{path}/infer", models.infer))
    return RestApp(router, limits, Budget(limits.buffered_bytes), authenticate)
