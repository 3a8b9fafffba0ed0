"""Which API key a client shows: the argument, ROUSE_API_KEY, that of the running embedded mesh."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from rouse.address import MESH_FILE, data_dir
from rouse.errors import InvalidArgument

MAX_CHARS = 512


def find_key(api_key: str | None, address: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The key for a gateway's address; None where there is none. Raises InvalidArgument BAD_API_KEY."""
    key = api_key or environ.get("ROUSE_API_KEY") or _of_mesh(data_dir(environ) / MESH_FILE, address)
    if not key:
        return None
    key = key.strip()
    if not key or len(key) > MAX_CHARS or not (key.isascii() and key.isprintable()) or " " in key:
        # Without the text: it may be most of a key.
        raise InvalidArgument(
            "the API key is not one: it has no spaces and only letters of ASCII", reason="BAD_API_KEY"
        )
    return key


def _of_mesh(path: Path, address: str) -> str | None:
    """The key that the embedded mesh at `address` has made for its owner."""
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or not content.get("api_key_file"):
            return None
        if str(content.get("gateway_address")) != address.replace("localhost:", "127.0.0.1:"):
            return None
        return Path(str(content["api_key_file"])).read_text()
    except (OSError, ValueError):
        return None
