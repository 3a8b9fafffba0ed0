"""A servicer of a double, on a real gRPC server that keeps its address over restarts."""

from __future__ import annotations

from typing import Any

from rouse_common.rpc import RpcServer

MAX_MESSAGE_BYTES = 64 << 20
ANY_PORT = "127.0.0.1:0"


class Served:
    """Serves itself, or the servicer that it is given.

    Args:
        register, contract: what adds a servicer to a server, and the descriptor of its service.
    """

    def __init__(self, register: Any, contract: Any, servicer: object | None = None, address: str = ANY_PORT) -> None:
        self._parts = (register, self if servicer is None else servicer, contract)
        self._server: RpcServer | None = None
        self.address = address

    async def start(self) -> str:
        """Serves, at the same address as before where there was one, and returns it."""
        self._server = RpcServer(self.address, max_message_bytes=MAX_MESSAGE_BYTES)
        self._server.add(*self._parts)
        await self._server.start()
        await self._server.set_serving(True)
        self.address = self._server.address
        return self.address

    async def stop(self) -> None:
        """Goes away at once, with the calls that it is answering."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(0)
