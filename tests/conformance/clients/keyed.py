"""The key of a mesh that asks for one, shown the way each client offers; without OUTSIDE_API_KEY nothing is shown."""

from __future__ import annotations

import importlib
import os
from typing import Any

KEY = os.environ.get("OUTSIDE_API_KEY", "")


def headers() -> dict[str, str]:
    """For clients that take metadata or headers with each call."""
    return {"authorization": f"Bearer {KEY}"} if KEY else {}


def keyed(client: Any, protocol: str) -> Any:
    """A tritonclient that shows the key with every request, by its own interface for plugins."""
    if not KEY:
        return client
    plugin: Any = importlib.import_module(f"tritonclient.{protocol}").InferenceServerClientPlugin

    class ShowKey(plugin):  # type: ignore[misc]
        def __call__(self, request: Any) -> None:
            request.headers.update(headers())

    client.register_plugin(ShowKey())
    return client
