"""The OpenAPI document says what is served, no more and no less."""

from __future__ import annotations

import json
from typing import Any, cast
from unittest.mock import Mock

import pytest

from rouse_gateway.http.errors import BY_REASON, STATUS
from rouse_gateway.http.routes import OPENAPI, make_router
from rouse_gateway.oip.desk import Desk
from rouse_gateway.state import Routes

DOCUMENT: dict[str, Any] = json.loads(b"".join(OPENAPI.parts))


def test_every_route_is_described_and_nothing_else() -> None:
    router = make_router(Routes(), cast(Desk, Mock()), "1")
    served = {(route.method.lower(), route.template) for route in router.routes}
    described = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == served
    without_key = {
        (method, path)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
        if operation.get("security") == []
    }
    assert without_key == {(route.method.lower(), route.template) for route in router.routes if route.open}


def test_names_in_paths_are_parameters() -> None:
    for path, methods in DOCUMENT["paths"].items():
        named = {part[1:-1] for part in path.split("/") if part.startswith("{")}
        for operation in methods.values():
            assert {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"} == named


def test_every_status_of_an_error_is_described() -> None:
    described = {int(name.removeprefix("E")) for name in DOCUMENT["components"]["responses"]}
    assert described == (set(STATUS.values()) | set(BY_REASON.values())) - {405}  # of methods that are not there


def test_operations_have_names_of_their_own() -> None:
    names = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in references(value)]
    return [found for value in node for found in references(value)] if isinstance(node, list) else []


@pytest.mark.parametrize("reference", sorted(set(references(DOCUMENT))))
def test_what_is_referred_to_is_there(reference: str) -> None:
    node = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
