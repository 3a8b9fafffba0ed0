"""Where the gateway is: the argument, ROUSE_ADDRESS, the running embedded mesh, localhost:8001."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from rouse.errors import InvalidArgument

DEFAULT = "localhost:8001"
MESH_FILE = "mesh.json"


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The embedded mesh's folder: ROUSE_DATA_DIR, else ~/.rouse."""
    return Path(environ.get("ROUSE_DATA_DIR") or Path.home() / ".rouse")


def resolve(address: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The gateway's address as host:port or unix:PATH. Raises InvalidArgument BAD_ADDRESS."""
    for text, source in (
        (address, "the address given"),
        (environ.get("ROUSE_ADDRESS"), "ROUSE_ADDRESS"),
        (_from_mesh_file(data_dir(environ) / MESH_FILE), f"{data_dir(environ) / MESH_FILE}"),
    ):
        if text:
            return _check(text, source)
    return DEFAULT


def _from_mesh_file(path: Path) -> str | None:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}", reason="BAD_ADDRESS") from None
    found = content.get("gateway_address") if isinstance(content, dict) else None
    if not isinstance(found, str):
        raise InvalidArgument(f"{path} holds no gateway_address", reason="BAD_ADDRESS")
    return found


def _check(text: str, source: str) -> str:
    if text.startswith("unix:") and len(text) > len("unix:"):
        return text
    host, separator, port = text.rpartition(":")
    # ASCII only: int() and gRPC disagree on other digits.
    if not separator or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise InvalidArgument(f"'{text}' ({source}) is not an address", reason="BAD_ADDRESS")
    if "/" in host:
        raise InvalidArgument(f"'{text}' ({source}) is a URL, not an address", reason="BAD_ADDRESS")
    return text
