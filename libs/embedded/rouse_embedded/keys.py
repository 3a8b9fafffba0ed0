"""The keys of an embedded mesh: the one that its secrets are encrypted with, and its administrator's API key."""

from __future__ import annotations

import secrets
from pathlib import Path

from rouse_embedded.stores.base import write_private

SECRETS_KEY, API_KEY = "secrets.key", "admin.key"
KEY_BYTES = 32


class Keys:
    """Files in a private folder, made once and kept.

    Args:
        folder: where they are.
        auth: whether callers need an API key, so that there has to be a first one.
    """

    def __init__(self, folder: Path, *, auth: bool) -> None:
        folder.mkdir(exist_ok=True, mode=0o700)
        self._secrets = _kept(folder / SECRETS_KEY, secrets.token_hex(KEY_BYTES))
        self.auth = auth
        # The administrator's key, for the command line; None where nobody needs one.
        self.api_key_file = _kept(folder / API_KEY, f"rouse_bootstrap_{secrets.token_hex(KEY_BYTES)}") if auth else None

    def settings(self, service: str) -> dict[str, str]:
        """What a service is told of them. Raises OSError."""
        if service == "gateway":
            return {"auth": str(self.auth).lower()}
        if service != "cluster-manager":
            return {}
        found = {"secrets_key_file": str(self._secrets)}
        if self.api_key_file is not None:
            found["bootstrap_key"] = self.api_key_file.read_text().strip()
        return found


def _kept(path: Path, text: str) -> Path:
    """A file that is there; `text` is written where it is not."""
    if not path.exists():
        write_private(path, text + "\n")
    return path
