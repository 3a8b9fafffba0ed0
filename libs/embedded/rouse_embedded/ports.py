"""Where the gateway listens."""

from __future__ import annotations

import socket

from rouse_common.config import parse_address
from rouse_embedded.stores.base import HOST, free_port

GATEWAY = f"{HOST}:8001"
GATEWAY_HTTP = f"{HOST}:8000"
ANY_HOST = ("0.0.0.0", "[::]")  # noqa: S104 - compared, never bound


def gateway_listen(wanted: str, usual: str = GATEWAY) -> str:
    """host:port for the gateway: `wanted`, with a free port for port 0; `usual`, or a free port where that
    is taken. Raises OSError where `wanted` is taken."""
    host, port = parse_address(wanted or usual, "--listen" if usual == GATEWAY else "--http")
    if port == 0:
        return f"{host}:{free_port()}"
    if not _is_free(host, port):
        if wanted:
            raise OSError(f"cannot listen on {wanted}; is another process using it?")
        return f"{host}:{free_port()}"
    return f"{host}:{port}"


def reachable(listen: str) -> str:
    """The address that a client on this machine uses for a server that listens on `listen`."""
    host, port = parse_address(listen, "--listen")
    return f"{HOST}:{port}" if host in ANY_HOST else listen


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family) as probe:
        # As the gateway does it: a port in TIME_WAIT is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError:
            return False
    return True
