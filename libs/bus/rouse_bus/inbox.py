"""A subject of one's own, that answers come to while one connection stands."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from rouse_bus.link import Link
from rouse_common.errors import Unavailable

if TYPE_CHECKING:
    from rouse_bus.bus import Bus

T = TypeVar("T")
STATUS = "Status"
DESCRIPTION = "Description"


class Inbox:
    """Answers to requests, in the order in which they came. Bounded by what its owner asks for at once.

    Use as an async context manager, or `close` it. Everything raises Unavailable BUS_DOWN once the
    connection that it was opened on is gone.
    """

    def __init__(self, bus: Bus, what: str) -> None:
        self._bus, self._what = bus, what
        self._prefix = f"_INBOX.{secrets.token_hex(11)}"
        self._queue: deque[Msg] = deque()
        self._some = asyncio.Event()
        self._link: Link | None = None
        self._subscription: Subscription | None = None

    async def open(self) -> Inbox:
        async def arrived(message: Msg) -> None:
            self._queue.append(message)
            self._some.set()

        async def action(link: Link) -> None:
            self._link = link
            self._subscription = await link.client.subscribe(f"{self._prefix}.*", cb=arrived)

        await self._bus.run(self._what, action)
        return self

    @property
    def alive(self) -> bool:
        """Whether the connection that it was opened on still stands."""
        return self._link is not None and not self._link.lost.done()

    def subject(self, token: object) -> str:
        """Where an answer to the request `token` goes."""
        return f"{self._prefix}.{token}"

    async def run(self, action: Callable[[Link], Coroutine[Any, Any, T]], *, timeout_s: float | None = None) -> T:
        """Runs an action on the inbox's own connection."""
        return await self._bus.run(self._what, action, timeout_s=timeout_s, on=self._link)

    async def publish(self, subject: str, data: bytes, token: object = None) -> None:
        """Sends a request, whose answers come here where it has a token."""
        reply = "" if token is None else self.subject(token)
        await self.run(lambda link: link.client.publish(subject, data, reply=reply))

    def waiting(self) -> Msg | None:
        """An answer that is already here."""
        return self._queue.popleft() if self._queue else None

    async def next(self, timeout_s: float | None = None) -> Msg:
        """The next answer, for one caller at a time. A cancelled call takes none away."""
        while not self._queue:
            self._some.clear()
            await self.run(lambda link: self._some.wait(), timeout_s=timeout_s)
        return self._queue.popleft()

    async def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await self.run(lambda link: subscription.unsubscribe())
            except Unavailable:
                return  # it went with its connection

    async def __aenter__(self) -> Inbox:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
