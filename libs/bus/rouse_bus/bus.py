"""The connection of a service to NATS: it waits for the server, comes back by itself, and says which it is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as WiredSubscription
from prometheus_client import Counter, Gauge

from rouse_bus.failures import api_error, bus_down, translated
from rouse_bus.link import Link
from rouse_bus.servers import Servers
from rouse_common import telemetry
from rouse_common.errors import NotFound, RouseError, Unavailable

LOG = logging.getLogger(__name__)
T = TypeVar("T")
Handler = Callable[[bytes], Awaitable[None]]

CONNECTED = Gauge("rouse_bus_connected", "1 while the connection to NATS stands.")
DROPPED = Counter("rouse_bus_dropped_messages_total", "Messages dropped because a handler was slow.", ["subject"])

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 1.0
DEFAULT_PAYLOAD_BYTES = 1 << 20
API_TIMEOUT_S = 5.0
CANCEL_AGAIN_S = 0.2
API = "$JS.API."


class Subscription:
    """One subject's messages on their way to a handler.

    Holds at most `max_pending` messages; past that the oldest is dropped, as the newest says what is so.
    """

    def __init__(self, subject: str, handler: Handler, max_pending: int) -> None:
        self.subject = subject
        self._handler = handler
        self._waiting: deque[tuple[bytes, dict[str, str]]] = deque(maxlen=max_pending)
        self._some = asyncio.Event()

    async def receive(self, message: Msg) -> None:
        if len(self._waiting) == self._waiting.maxlen:
            DROPPED.labels(self.subject).inc()
            LOG.warning("dropped the oldest message subject=%s reason=handler is slow", self.subject)
        self._waiting.append((message.data, message.headers or {}))
        self._some.set()

    async def deliver(self) -> None:
        """Hands messages to the handler, one after the other, until cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                data, headers = self._waiting.popleft()
                await self._handle(data, headers)

    async def _handle(self, data: bytes, headers: dict[str, str]) -> None:
        with telemetry.within(telemetry.extract(headers)):
            try:
                await self._handler(data)
            except Exception:  # whatever a handler raises must not end its subscription
                LOG.exception("handler failed subject=%s size_bytes=%d", self.subject, len(data))


class Bus:
    """Publish and subscribe over NATS, and the way to its streams and objects.

    While NATS is away every call raises Unavailable BUS_DOWN at once, also those that were waiting for an
    answer; subscriptions are kept and made again when it is back.
    """

    def __init__(self, url: str, name: str) -> None:
        self._servers, self._name = Servers.parse(url), name
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self._deliveries: dict[Subscription, asyncio.Task[None]] = {}
        self._wired: dict[Subscription, WiredSubscription] = {}
        self._callbacks: list[Callable[[], Awaitable[None]]] = []
        self._keeper: asyncio.Task[None] | None = None
        self._down.set()

    @classmethod
    async def connect(cls, url: str, name: str) -> Bus:
        """Waits for the server, for ever, and returns connected. `name` shows in NATS's monitoring."""
        bus = cls.open(url, name)
        try:
            await bus.wait_connected()
        except BaseException:
            await bus.close()
            raise
        return bus

    @classmethod
    def open(cls, url: str, name: str) -> Bus:
        """Returns at once and connects in the background; `close` it in any case."""
        bus = cls(url, name)
        bus._keeper = asyncio.create_task(bus._keep(), name="bus")
        return bus

    async def wait_connected(self) -> None:
        """Waits until there is a connection."""
        await self._up.wait()

    async def wait_disconnected(self) -> None:
        """Waits until the connection is lost."""
        await self._down.wait()

    @property
    def connected(self) -> bool:
        return self._up.is_set()

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message that the server takes."""
        return self._link.client.max_payload if self._link else DEFAULT_PAYLOAD_BYTES

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Calls back after every connection made from now on, subscriptions in place. What was published
        meanwhile is missed: fetch it here. A RouseError that it raises is logged."""
        self._callbacks.append(callback)

    async def publish(self, subject: str, data: bytes) -> None:
        """Sends to whoever listens now, in the current trace. Raises Unavailable BUS_DOWN, or
        InvalidArgument MESSAGE_TOO_LARGE past `max_payload`."""
        headers = dict(telemetry.inject())
        await self.run(f"publishing to {subject}", lambda link: link.client.publish(subject, data, headers=headers))

    async def subscribe(self, subject: str, handler: Handler, *, max_pending: int = 1024) -> Subscription:
        """Calls `handler(data)` for each message from now on, in order, in the trace of its sender.

        An exception in the handler is logged. While NATS is away the subscription waits with it.
        """
        subscription = Subscription(subject, handler, max_pending)
        self._subscriptions.append(subscription)
        self._deliveries[subscription] = asyncio.create_task(subscription.deliver(), name=f"bus {subject}")
        link = self._link
        if link is not None:
            try:
                await self._attach(subscription)
            except Unavailable:
                await link.close()  # the next link makes it again
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Ends a subscription; messages that wait for its handler are dropped."""
        self._subscriptions.remove(subscription)
        await _ended(self._deliveries.pop(subscription))
        wired = self._wired.pop(subscription, None)
        if wired is not None:
            with contextlib.suppress(Unavailable):  # then it is gone with the connection
                await self.run(f"unsubscribing from {subscription.subject}", lambda link: wired.unsubscribe())

    async def close(self) -> None:
        """Flushes what was published and ends. Cancels handlers at work."""
        if self._keeper is not None:
            await _ended(self._keeper)
        for delivery in self._deliveries.values():
            await _ended(delivery)
        self._deliveries.clear()
        link, self._link = self._link, None
        CONNECTED.set(0)
        if link is not None:
            await link.close()

    async def run(
        self, what: str, action: Callable[[Link], Coroutine[Any, Any, T]], *, timeout_s: float | None = None,
        on: Link | None = None,
    ) -> T:  # fmt: skip
        """Runs one exchange with NATS, on the connection `on` if given; for this package's own modules.

        Raises Unavailable BUS_DOWN where there is no connection, it breaks meanwhile, or time runs out.
        """
        link = self._link
        timeout_s = API_TIMEOUT_S if timeout_s is None else timeout_s
        if link is None or on not in (None, link):
            raise bus_down(what, "not connected" if link is None else "the connection broke")
        task = asyncio.create_task(action(link))
        try:
            either: set[asyncio.Future[Any]] = {task, link.lost}
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if task.cancelled():  # the client cancels what waits when it closes
                raise bus_down(what, "the connection broke")
            if task.done():
                with translated(what):
                    return task.result()
            raise bus_down(what, "the connection broke" if link.lost.done() else f"no answer within {timeout_s:g} s")
        finally:
            if not task.done():
                task.cancel()
                task.add_done_callback(_seen)

    async def api(self, verb: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request to the JetStream API, as "STREAM.INFO.name"; for this package's own modules.

        Raises what failures.api_error makes of the answer.
        """
        payload = b"" if request is None else json.dumps(request).encode()
        try:
            answer = await self.request(f"{API}{verb}", payload, what=verb)
        except NotFound:
            raise bus_down(verb, "its JetStream does not answer") from None
        response: dict[str, Any] = json.loads(answer)
        if "error" in response:
            raise api_error(verb, response["error"])
        return response

    async def request(
        self, subject: str, data: bytes, *, what: str, headers: dict[str, str] | None = None,
        timeout_s: float = API_TIMEOUT_S,
    ) -> bytes:  # fmt: skip
        """Sends and returns the data of the one answer.

        Raises Unavailable BUS_DOWN without one, NotFound NO_RESPONDERS where nobody listens.
        """
        answer = await self.run(
            what,
            lambda link: link.client.request(subject, data, timeout=timeout_s, headers=headers),
            timeout_s=timeout_s + 1,
        )
        return answer.data

    async def _keep(self) -> None:
        backoff_s, warned = FIRST_BACKOFF_S, False
        while True:
            try:
                link = await Link.dial(self._servers, self._name)
            except RouseError as error:
                if not warned:
                    LOG.warning("waiting for NATS at %s: %s", self._servers.shown, error)
                warned = True
                await asyncio.sleep(backoff_s)
                backoff_s = min(MAX_BACKOFF_S, backoff_s * 2)
                continue
            self._link = link
            link.lost.add_done_callback(self._lost)
            backoff_s, warned = FIRST_BACKOFF_S, False
            welcome = asyncio.create_task(self._welcome(link), name="bus welcome")
            try:
                await link.lost
            finally:
                await _ended(welcome)
            self._link = None
            await link.close()

    def _lost(self, lost: asyncio.Future[None]) -> None:
        self._up.clear()
        self._down.set()
        CONNECTED.set(0)
        if not lost.cancelled():
            LOG.warning("lost the connection to NATS at %s", self._servers.shown)

    async def _welcome(self, link: Link) -> None:
        try:
            for subscription in list(self._subscriptions):
                await self._attach(subscription)
        except RouseError as error:
            LOG.warning("cannot subscribe, connecting again: %s", error)
            await link.close()
            return
        CONNECTED.set(1)
        self._down.clear()
        self._up.set()
        LOG.info("connected to NATS at %s", self._servers.shown)
        for callback in list(self._callbacks):
            try:
                await callback()
            except RouseError as error:
                LOG.warning("after connecting to NATS: %s", error)

    async def _attach(self, subscription: Subscription) -> None:
        async def forward(message: Msg) -> None:
            if subscription in self._deliveries:
                await subscription.receive(message)

        async def action(link: Link) -> None:
            self._wired[subscription] = await link.client.subscribe(subscription.subject, cb=forward)
            await link.client.flush()

        await self.run(f"subscribing to {subscription.subject}", action)


async def _ended(task: asyncio.Task[None]) -> None:
    while not task.done():
        # Again, because asyncio.wait_for in Python 3.11 loses a cancellation that meets its result.
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
    _seen(task)


def _seen(task: asyncio.Task[Any]) -> None:
    """Takes a task's outcome, so that nobody is told that it was never looked at."""
    if not task.cancelled():
        task.exception()
