"""Links in tests: messages in and out, and servers that go away and come back."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from rouse_common.link import Buffer, Incoming, Links, LinkServer
from rouse_testkit.served import MAX_MESSAGE_BYTES

M = TypeVar("M", bound=Message)
# Gives the last answer, or None where all were sent.
Handler = Callable[[Any, Incoming], Awaitable[Message | None]]


async def ask(links: Links, address: str, method: str, request: Message, kind: type[M], timeout_s: float = 10.0) -> M:
    """One call with one answer. Raises RouseError."""
    answer = await links.call(address, method.encode(), [request.SerializeToString()], timeout_s)
    return kind.FromString(bytes(answer))


class Linked:
    """Handlers of messages behind a link, at an address that it keeps over restarts."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self.address = address
        self._handlers: list[tuple[str, type[Message], Handler]] = []
        self._server: LinkServer | None = None

    def add(self, method: str, kind: type[Message], handler: Handler) -> None:
        self._handlers.append((method, kind, handler))

    async def start(self) -> None:
        self._server = LinkServer(self.address, max_message_bytes=MAX_MESSAGE_BYTES)
        for method, kind, handler in self._handlers:
            self._server.add(method, _serving(kind, handler))
        await self._server.start()
        self.address = self._server.address

    async def kill(self) -> None:
        """Goes away at once, with the calls that it is answering."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(0)


def _serving(kind: type[Message], handler: Handler) -> Callable[[Buffer, Incoming], Awaitable[Sequence[Buffer] | None]]:
    async def serve(message: Buffer, call: Incoming) -> Sequence[Buffer] | None:
        answer = await handler(kind.FromString(bytes(message)), call)
        return None if answer is None else [answer.SerializeToString()]

    return serve


async def answered(answer: Awaitable[M] | AsyncIterator[M], call: Incoming) -> M | None:
    """The one answer; or None where they are several, after all were sent."""
    if inspect.isawaitable(answer):
        return await answer
    async for response in answer:
        await call.send([response.SerializeToString()])
    return None
