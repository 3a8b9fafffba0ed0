"""Where the gateway is (the argument, ROUSE_ADDRESS, the running embedded mesh, localhost:8001), and how to call it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from rouse.errors import InvalidArgument

DEFAULT = "localhost:8001"
MESH_FILE = "mesh.json"
SECURE, PLAIN = "grpcs://", "grpc://"


@dataclass(frozen=True)
class Gateway:
    """Where to call, and how.

    Attributes:
        address: host:port or unix:PATH.
        tls: whether it has to prove itself.
        ca: PEM file of the authority that is believed; None: those of the machine.
    """

    address: str
    tls: bool = False
    ca: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials | None:
        """None for a plain connection. Raises InvalidArgument BAD_CA."""
        if not self.tls:
            return None
        try:
            return grpc.ssl_channel_credentials(self.ca.read_bytes() if self.ca is not None else None)
        except OSError as error:
            raise InvalidArgument(f"the authority's file {self.ca} cannot be read: {error}", reason="BAD_CA") from None


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The embedded mesh's folder: ROUSE_DATA_DIR, else ~/.rouse."""
    return Path(environ.get("ROUSE_DATA_DIR") or Path.home() / ".rouse")


def resolve(address: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The gateway's address as host:port or unix:PATH. Raises InvalidArgument BAD_ADDRESS."""
    return locate(address, None, environ).address


def locate(
    address: str | None = None, ca: str | os.PathLike[str] | None = None, environ: Mapping[str, str] = os.environ
) -> Gateway:
    """The gateway, and how to call it.

    TLS is used where the address begins with grpcs://, where `ca` or ROUSE_CA names an authority, and for the
    running embedded mesh where that has one. grpc:// is plain whatever else is set.

    Raises InvalidArgument BAD_ADDRESS.
    """
    path = data_dir(environ) / MESH_FILE
    for text, source in ((address, "the address given"), (environ.get("ROUSE_ADDRESS"), "ROUSE_ADDRESS")):
        if text:
            return _with_ca(text, source, ca, environ, _tolerant(path))
    mesh = _mesh(path)
    return _with_ca(mesh[0] if mesh is not None else DEFAULT, str(path), ca, environ, mesh)


def _with_ca(
    text: str, source: str, ca: str | os.PathLike[str] | None, environ: Mapping[str, str], mesh: tuple[str, str] | None
) -> Gateway:
    bare = _check(text.removeprefix(SECURE).removeprefix(PLAIN), text, source)
    if text.startswith(PLAIN) or bare.startswith("unix:"):
        return Gateway(bare)
    known = ca or environ.get("ROUSE_CA")
    if not known and mesh is not None and _same(mesh[0]) == _same(bare):
        known = mesh[1]
    if known:
        return Gateway(bare, True, Path(known).expanduser())
    return Gateway(bare, text.startswith(SECURE))


def _same(address: str) -> str:
    return address.replace("localhost:", "127.0.0.1:")


def _mesh(path: Path) -> tuple[str, str] | None:
    """The running embedded mesh's address and authority, empty for none. Raises InvalidArgument BAD_ADDRESS."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}", reason="BAD_ADDRESS") from None
    found = content.get("gateway_address") if isinstance(content, dict) else None
    if not isinstance(found, str):
        raise InvalidArgument(f"{path} holds no gateway_address", reason="BAD_ADDRESS")
    return found, str(content.get("tls_ca") or "")


def _tolerant(path: Path) -> tuple[str, str] | None:
    """As `_mesh`; a file that is not needed may be broken."""
    try:
        return _mesh(path)
    except InvalidArgument:
        return None


def _check(bare: str, text: str, source: str) -> str:
    if bare.startswith("unix:") and len(bare) > len("unix:"):
        return bare
    host, separator, port = bare.rpartition(":")
    # ASCII only: int() and gRPC disagree on other digits.
    if not separator or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise InvalidArgument(f"'{text}' ({source}) is not an address", reason="BAD_ADDRESS")
    if "/" in host:
        raise InvalidArgument(f"'{text}' ({source}) is a URL, not an address", reason="BAD_ADDRESS")
    return bare
