"""Encrypting secrets: AES-256-GCM with a key from a file, bound to whose secret it is and to its name."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rouse_common.config import ConfigError
from rouse_common.errors import FailedPrecondition

KEY_BYTES = 32
NONCE_BYTES = 12
FORMAT = b"\x01"
MAX_FILE_BYTES = 64 << 10


class Vault:
    """Args:
    keys: the first encrypts, all decrypt; none: the mesh keeps no secrets.
    """

    def __init__(self, keys: list[bytes]) -> None:
        self._ciphers = [AESGCM(key) for key in keys]

    @classmethod
    def open(cls, path: str) -> Vault:
        """The vault of a key file: 64 hex digits a line, readable by its owner alone. Raises ConfigError, which
        says what is wrong with the file and nothing of what is in it."""
        return cls(read_keys(Path(path)) if path else [])

    def seal(self, tenant: str, name: str, value: str) -> bytes:
        """Raises FailedPrecondition NO_SECRET_KEY."""
        self._check(name)
        nonce = secrets.token_bytes(NONCE_BYTES)
        return FORMAT + nonce + self._ciphers[0].encrypt(nonce, value.encode(), _bound_to(tenant, name))

    def unseal(self, tenant: str, name: str, sealed: bytes) -> str:
        """Raises FailedPrecondition NO_SECRET_KEY, also where none of the keys fits."""
        self._check(name)
        nonce, ciphertext = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        for cipher in self._ciphers if sealed[:1] == FORMAT else ():
            try:
                return cipher.decrypt(nonce, ciphertext, _bound_to(tenant, name)).decode()
            except InvalidTag:
                continue
        raise FailedPrecondition(
            "NO_SECRET_KEY",
            f"secret '{name}' of tenant '{tenant}' was encrypted with a key that secrets_key_file does not hold; put "
            "that key back as a further line, or set the secret again",
            secret=name, tenant=tenant,
        )  # fmt: skip

    def _check(self, name: str) -> None:
        if not self._ciphers:
            raise FailedPrecondition(
                "NO_SECRET_KEY",
                f"secret '{name}': this mesh has no key to encrypt secrets with; set cluster-manager's "
                "secrets_key_file",
                secret=name,
            )


def _bound_to(tenant: str, name: str) -> bytes:
    return f"{tenant}/{name}".encode()


def read_keys(path: Path) -> list[bytes]:
    """The keys of a file. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno())
            if not stat.S_ISREG(mode.st_mode) or mode.st_mode & 0o077:
                raise ConfigError(f"secrets_key_file={path}: others can read it; run chmod 600 on it")
            lines = file.read(MAX_FILE_BYTES).split()
    except OSError as error:
        raise ConfigError(f"secrets_key_file={path}: {error.strerror}") from None
    try:
        keys = [bytes.fromhex(line.decode("ascii")) for line in lines]
    except ValueError:
        keys = []
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise ConfigError(
            f"secrets_key_file={path}: want {2 * KEY_BYTES} hex digits a line, as `openssl rand -hex {KEY_BYTES}` "
            "prints"
        )
    return keys
