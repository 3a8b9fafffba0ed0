"""Checking keys on the HTTP port."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rouse_gateway.access.caller import OPEN
from rouse_gateway.access.guard import Access
from rouse_gateway.access.roles import role_of_path
from rouse_gateway.http.router import Route


def authenticator(guard: Access) -> Callable[[Mapping[bytes, bytes], Route, str], None]:
    """What RestApp asks before it reads a request's body. It raises what Access.admit does."""

    def authenticate(headers: Mapping[bytes, bytes], route: Route, peer: str) -> None:
        role = OPEN if route.open else role_of_path(route.template)
        text = headers.get(b"authorization") or headers.get(b"x-api-key")
        guard.authorise(f"{route.method} {route.template}", role, text.decode("latin-1") if text else None, peer)

    return authenticate
