"""Sockets: peers that are gone without a word, files that a listener left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

IDLE_S = 10
PROBE_S = 3
PROBES = 3
# Sent bytes that stay unacknowledged for so long end the connection.
UNACKNOWLEDGED_MS = 20_000


def alive(transport: asyncio.BaseTransport) -> None:
    """Has the kernel probe the peer of a TCP connection."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)


def remove(path: str) -> None:
    """Removes the file of a Unix socket, where there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
