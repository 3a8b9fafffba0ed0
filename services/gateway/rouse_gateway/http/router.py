"""Which handler answers a path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rouse_gateway.http.errors import method_not_allowed, no_such_path
from rouse_gateway.http.messages import Reply, Request, Stream

Handler = Callable[[Request], Awaitable[Reply | Stream]]
MAX_SEGMENTS = 16


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    Args:
        template: the path with names in braces, as in the OpenAPI document.
        span: what the span of a request is called; empty: it has none.
        open: whether it is answered without a key.
    """

    method: str
    template: str
    handler: Handler
    span: str = ""
    open: bool = False


@dataclass(slots=True)
class _Node:
    literal: dict[str, _Node] = field(default_factory=dict)
    named: tuple[str, _Node] | None = None
    routes: dict[str, Route] = field(default_factory=dict)


class Router:
    """Routes by path and method. A word of a path beats a name at its place."""

    def __init__(self) -> None:
        self._root = _Node()
        self.routes: list[Route] = []

    def add(self, route: Route) -> None:
        node = self._root
        for segment in route.template.strip("/").split("/"):
            if segment.startswith("{"):
                node.named = node.named or (segment[1:-1], _Node())
                name, node = node.named
                assert name == segment[1:-1], f"{route.template}: one place of a path has one name"
            else:
                node = node.literal.setdefault(segment, _Node())
        node.routes[route.method] = route
        self.routes.append(route)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route of a request and the values in its path. Raises NotFound, Unimplemented."""
        values: dict[str, str] = {}
        segments = path.split("/", MAX_SEGMENTS)
        node = self._root
        for segment in segments[1:]:
            found = node.literal.get(segment)
            if found is None:
                if node.named is None or not segment:
                    raise no_such_path(path)
                name, found = node.named
                values[name] = segment
            node = found
        # HEAD is GET whose body is not sent, which is the server's business.
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is not None:
            return route, values
        if not node.routes:
            raise no_such_path(path)
        raise method_not_allowed(method, path, ", ".join(sorted(node.routes)))
