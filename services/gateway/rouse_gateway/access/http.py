"""Checking keys on the HTTP port."""

from __future__ import annotations

from collections.abc import Mapping

from rouse_common.errors import RouseError
from rouse_gateway.access.caller import OPEN
from rouse_gateway.access.guard import Access
from rouse_gateway.access.roles import role_of_path
from rouse_gateway.http.router import Route


class HttpAccess:
    """What RestApp asks about callers; the answers are those of Access."""

    def __init__(self, guard: Access) -> None:
        self._guard = guard

    def admit(self, headers: Mapping[bytes, bytes], route: Route, peer: str) -> None:
        """Before a request's body is read. Raises what Access.admit does."""
        self._guard.authorise(_what(route), _role(route), _text(headers), peer)

    async def lost(self, headers: Mapping[bytes, bytes], route: Route) -> RouseError | None:
        """Returns once a request that was admitted would be refused; None at once where no key is needed."""
        return await self._guard.withdrawn(_what(route), _role(route), _text(headers))


def _what(route: Route) -> str:
    return f"{route.method} {route.template}"


def _role(route: Route) -> int:
    return OPEN if route.open else role_of_path(route.template)


def _text(headers: Mapping[bytes, bytes]) -> str | None:
    text = headers.get(b"authorization") or headers.get(b"x-api-key")
    return text.decode("latin-1") if text else None
