"""The calling end of links: one connection an address for small messages, one for large ones."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from rouse_common import telemetry
from rouse_common.errors import DeadlineExceeded, Internal, RouseError, Unavailable, from_status
from rouse_common.link.connection import Connection
from rouse_common.link.frames import CREDIT, Buffer, Frame, Kind, ProtocolError, call_head

# A process that listens answers at once; a busy machine may need some.
CONNECT_S = 5.0
FIRST_PAUSE_S = 0.02
MAX_PAUSE_S = 0.25
# Requests from here on travel over a connection of their own, where they hold nothing small up.
BULK_BYTES = 256 << 10
# Responses read before the server is told that it may send as many more.
CREDIT_STEP = 8


class _Pending:
    """What has come of one call, and who waits for more."""

    __slots__ = ("_loop", "ended", "error", "items", "waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.items: deque[Buffer] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.error: RouseError | None = None
        self.ended = False

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def fail(self, error: RouseError) -> None:
        if not self.ended:
            self.error, self.ended = error, True
            self.wake()

    async def next(self) -> Buffer | None:
        """The next response; None after the last. Raises what the call ended with."""
        while not self.items:
            if self.error is not None:
                raise self.error
            if self.ended:
                return None
            self.waiter = self._loop.create_future()
            await self.waiter
        return self.items.popleft()


@dataclass(eq=False)
class _Lane:
    """One connection to an address, as far as there is one."""

    open: Connection | None = None
    connecting: asyncio.Task[None] | None = None


@dataclass(eq=False)
class _Peer:
    small: _Lane = field(default_factory=_Lane)
    bulk: _Lane = field(default_factory=_Lane)


class Links:
    """Calls over links. The number of addresses is bounded by what a mesh has; `forget` drops one that is gone.

    Args:
        max_message_bytes: largest message in either direction.
        tls: context for TCP connections; None: plain. Unix sockets are plain always.
    """

    MAX = 4096

    def __init__(self, max_message_bytes: int, tls: ssl.SSLContext | None = None) -> None:
        self._max_bytes, self._tls = max_message_bytes, tls
        self._peers: dict[str, _Peer] = {}
        self._numbers = itertools.count(1)
        # Calls under way; also on connections that their server closes, until it has answered.
        self._calls: dict[Connection, dict[int, _Pending]] = {}

    async def call(self, address: str, method: bytes, parts: Sequence[Buffer], timeout_s: float) -> Buffer:
        """One request, one response.

        Args:
            address: host:port or unix:PATH.
            method: b"/package.Service/Method".
            parts: the request; must not change until the call has ended.

        Raises Unavailable NOT_CONNECTED where the request surely was not sent, Unavailable LINK_LOST where it may
        have arrived; DeadlineExceeded; else what the server answered. Cancelling it cancels the call.
        """
        connection = await self._connection(address, parts, timeout_s)
        number, pending = self._send(connection, method, parts, timeout_s)
        timer = connection.loop.call_later(timeout_s, _expire, pending, method)
        try:
            if connection.full:
                await connection.drained()
            answer = await pending.next()
            if answer is None:
                raise Internal("BAD_ANSWER", f"{method.decode()} at {address} ended without a response")
            return answer
        finally:
            timer.cancel()
            self._done(connection, number, pending)

    async def stream(
        self, address: str, method: bytes, parts: Sequence[Buffer], timeout_s: float
    ) -> AsyncGenerator[Buffer, None]:
        """One request, any number of responses, as they come; see `call`. Closing it early cancels the call."""
        connection = await self._connection(address, parts, timeout_s)
        number, pending = self._send(connection, method, parts, timeout_s)
        timer = connection.loop.call_later(timeout_s, _expire, pending, method)
        read = 0
        try:
            if connection.full:
                await connection.drained()
            while (answer := await pending.next()) is not None:
                yield answer
                read += 1
                if read % CREDIT_STEP == 0 and not pending.ended:
                    connection.send(Kind.CREDIT, number, parts=(CREDIT.pack(CREDIT_STEP),))
        finally:
            timer.cancel()
            self._done(connection, number, pending)

    async def connected(self, address: str, timeout_s: float, *, patient: bool) -> bool:
        """Whether a connection stands, making one where needed.

        Args:
            timeout_s: how long to wait at most, seconds.
            patient: whether a refused connection is tried again until then, as for a neighbour that restarts.
        """
        pause_s = FIRST_PAUSE_S
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        await self._open(address, self._peer(address).small)
                        return True
                    except Unavailable:
                        if not patient:
                            return False
                    await asyncio.sleep(pause_s)
                    pause_s = min(MAX_PAUSE_S, pause_s * 2)
        except TimeoutError:
            return False

    async def forget(self, address: str) -> None:
        """Closes the connections to an address; calls under way end with LINK_LOST."""
        peer = self._peers.pop(address, None)
        if peer is None:
            return
        for lane in (peer.small, peer.bulk):
            if lane.connecting is not None:
                lane.connecting.cancel()
                await asyncio.wait([lane.connecting])
            if lane.open is not None:
                lane.open.close()

    async def close(self) -> None:
        for address in list(self._peers):
            await self.forget(address)
        for connection in list(self._calls):
            connection.close()

    # ---- Connections --------------------------------------------------------------------------

    def _peer(self, address: str) -> _Peer:
        peer = self._peers.get(address)
        if peer is None:
            if len(self._peers) >= self.MAX:
                raise Unavailable("NOT_CONNECTED", f"{self.MAX} links are open already; cannot reach {address}")
            peer = self._peers[address] = _Peer()
        return peer

    async def _connection(self, address: str, parts: Sequence[Buffer], timeout_s: float) -> Connection:
        if timeout_s <= 0:
            raise DeadlineExceeded("DEADLINE_EXCEEDED", "no time was left to make the call")
        size = sum(map(len, parts))
        if size > self._max_bytes:
            raise Internal("MESSAGE_TOO_LARGE", f"a request of {size} bytes; a link carries {self._max_bytes} at most")
        peer = self._peer(address)
        lane = peer.small if size < BULK_BYTES else peer.bulk
        if lane.open is not None:
            return lane.open
        return await self._open(address, lane, timeout_s)

    async def _open(self, address: str, lane: _Lane, timeout_s: float = CONNECT_S) -> Connection:
        """The connection of a lane, which all that wait for it share. Raises Unavailable, DeadlineExceeded."""
        if lane.open is not None:
            return lane.open
        if lane.connecting is None:
            lane.connecting = asyncio.ensure_future(self._connect(address, lane))
        task = lane.connecting
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            raise DeadlineExceeded("DEADLINE_EXCEEDED", f"the link to {address} did not stand in time")
        if task.cancelled():
            raise Unavailable("NOT_CONNECTED", f"the link to {address} was closed while it was made")
        task.result()
        if lane.open is None:
            raise Unavailable("NOT_CONNECTED", f"the link to {address} ended as soon as it stood")
        return lane.open

    async def _connect(self, address: str, lane: _Lane) -> None:
        loop = asyncio.get_running_loop()

        def make() -> Connection:
            return Connection(self._max_bytes, self._received, lambda ended: self._lost(ended, address, lane))

        connection: Connection | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                if address.startswith("unix:"):
                    _, connection = await loop.create_unix_connection(make, address.removeprefix("unix:"))
                else:
                    host, _, port = address.rpartition(":")
                    _, connection = await loop.create_connection(make, host.strip("[]"), int(port), ssl=self._tls)
                await connection.greeted
            if not connection.lost:
                lane.open = connection
                self._calls[connection] = {}
        except (OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise Unavailable("NOT_CONNECTED", f"cannot connect to {address}: {why}") from None
        finally:
            lane.connecting = None
            self._drop_unconnected(address)
            if connection is not None and not connection.greeted.done():
                connection.close()

    def _drop_unconnected(self, address: str) -> None:
        """Keeps nothing of an address without a connection, so that memory does not grow with their number."""
        peer = self._peers.get(address)
        if peer is not None and not any(lane.open or lane.connecting for lane in (peer.small, peer.bulk)):
            del self._peers[address]

    def _lost(self, connection: Connection, address: str, lane: _Lane) -> None:
        if lane.open is connection:
            lane.open = None
        self._drop_unconnected(address)
        for pending in self._calls.pop(connection, {}).values():
            pending.fail(Unavailable("LINK_LOST", f"the link to {address} broke while the call was under way"))

    # ---- Calls --------------------------------------------------------------------------------

    def _send(
        self, connection: Connection, method: bytes, parts: Sequence[Buffer], timeout_s: float
    ) -> tuple[int, _Pending]:
        number, pending = next(self._numbers), _Pending(connection.loop)
        self._calls[connection][number] = pending
        connection.send(Kind.CALL, number, call_head(method, timeout_s, telemetry.traceparent()), parts)
        return number, pending

    def _done(self, connection: Connection, number: int, pending: _Pending) -> None:
        """Forgets a call; where it has not ended, the server is told that nobody waits any more."""
        calls = self._calls.get(connection)
        if calls is not None and calls.pop(number, None) is not None:
            connection.send(Kind.CANCEL, number)

    def _received(self, connection: Connection, frame: Frame) -> None:
        calls = self._calls.get(connection, {})
        if frame.kind is Kind.CLOSING:
            self._closing(connection)
            return
        if frame.kind is Kind.MESSAGE:
            pending = calls.get(frame.call)
        elif frame.kind in (Kind.LAST, Kind.END, Kind.ERROR):
            pending = calls.pop(frame.call, None)
        else:
            raise ProtocolError(f"a server sends no {frame.kind.name}")
        if pending is None:  # given up meanwhile
            return
        if frame.kind is Kind.ERROR:
            pending.fail(_error(frame.body))
            return
        if frame.kind is not Kind.END:
            pending.items.append(frame.body)
        pending.ended = pending.ended or frame.kind is not Kind.MESSAGE
        pending.wake()

    def _closing(self, connection: Connection) -> None:
        """The server stops: what is under way stays, what comes next connects anew."""
        for peer in self._peers.values():
            for lane in (peer.small, peer.bulk):
                if lane.open is connection:
                    lane.open = None


def _expire(pending: _Pending, method: bytes) -> None:
    name = method.decode().rpartition("/")[2]
    pending.fail(DeadlineExceeded("DEADLINE_EXCEEDED", f"no answer to {name} came within the deadline"))


def _error(body: Buffer) -> RouseError:
    try:
        return from_status(bytes(body))
    except DecodeError as error:
        raise ProtocolError(f"an error that is no google.rpc.Status: {error}") from None
