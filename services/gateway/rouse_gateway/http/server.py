"""The HTTP server within the service's own event loop: uvicorn without its signals, logs and middleware."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Any

import uvicorn

from rouse_common.config import parse_address
from rouse_gateway.http import connection
from rouse_gateway.http.limits import Limits

BACKLOG = 2048
# Between asking the last connections to close and cutting them.
CUT_S = 1.0


class HttpServer:
    """Serves an ASGI application.

    Args:
        listen: host:port; port 0 takes a free one.
        tls: serves HTTPS.
    """

    def __init__(self, listen: str, app: Any, limits: Limits, tls: ssl.SSLContext | None = None) -> None:
        self._listen = listen
        self._tls = tls
        # What a client does wrong is answered to it, and is no matter for the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._config = uvicorn.Config(
            app,
            interface="asgi3",
            http=connection.make(limits),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=int(limits.idle_s),
        )
        self._server = uvicorn.Server(self._config)
        self._socket: socket.socket | None = None
        self._started = False
        self.address = listen

    def bind(self) -> None:
        """Takes the address and sets `address`. Raises OSError where it is taken."""
        host, port = parse_address(self._listen, "http_listen")
        self._socket = _bound(host, port)
        self.address = f"{host}:{self._socket.getsockname()[1]}"

    async def start(self) -> None:
        """Serves at what `bind` took."""
        self._config.load()
        self._config.ssl = self._tls
        self._server.lifespan = self._config.lifespan_class(self._config)
        assert self._socket is not None, "bind it first"
        await self._server.startup(sockets=[self._socket])
        self._started = True

    async def stop(self, drain_s: float) -> None:
        """Accepts no more, waits up to `drain_s` for requests at work, cancels the rest, closes."""
        if self._socket is None:
            return
        if not self._started:
            self._socket.close()
            return
        self._config.timeout_graceful_shutdown = drain_s  # type: ignore[assignment]
        await self._server.shutdown(sockets=[self._socket])
        tasks = set(self._server.server_state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=CUT_S)
        for left in list(self._server.server_state.connections):
            left.transport.abort()


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host.strip("[]"), port))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        raise OSError(f"cannot listen on {host}:{port} for HTTP: {error.strerror or error}") from error
    found.setblocking(False)
    return found
