"""The serving end of links in one thread, which reads, works and answers, one call after the other.

A server on an event loop hands each call over to the thread that does the work, and back: two wake-ups and a fight for
the interpreter at every call. Here the thread that works reads the sockets itself. While a call takes long, the event
loop reads in its place, so that a caller who gives up is heard, and a second call refused, at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from rouse_common import telemetry
from rouse_common.errors import DeadlineExceeded, Internal, RouseError, Unavailable, to_status
from rouse_common.link.connection import JOIN_BYTES
from rouse_common.link.frames import (
    MAGIC,
    MAX_HEAD_BYTES,
    Buffer,
    Decoder,
    Frame,
    Kind,
    ProtocolError,
    encode,
    read_call_head,
)
from rouse_common.link.sockets import remove
from rouse_common.observed import Observed

LOG = logging.getLogger(__name__)
T = TypeVar("T")
MAX_CONNECTIONS = 64
BACKLOG = 64
# A call that takes longer is attended to by the event loop: how late a caller who gives up is heard.
TICK_S = 0.02
# For what is no answer to a call.
SEND_S = 1.0
GIVEN_UP = asyncio.CancelledError()


class WorkThread(Protocol):
    """The thread that calls are served in."""

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Does something there, between two calls."""

    def watch(self, descriptor: int, ready: Callable[[], None]) -> None:
        """Has `ready` called there whenever there is something to read."""

    def unwatch(self, descriptor: int) -> None: ...


class Ongoing:
    """The call that is being served. `deadline` is one of time.monotonic()."""

    __slots__ = ("answered", "deadline", "given_up", "number", "peer")

    def __init__(self, peer: _Peer, number: int, timeout_s: float) -> None:
        self.peer, self.number = peer, number
        self.deadline = time.monotonic() + timeout_s
        self.given_up = self.answered = False

    @property
    def remaining_s(self) -> float:
        """Seconds until the caller's deadline."""
        return max(0.0, self.deadline - time.monotonic())


Handler: TypeAlias = Callable[[Buffer, Ongoing], Sequence[Buffer]]


class _Peer:
    """One connection. `calls` have been read and wait for their turn; nothing more is read of a `broken` one."""

    __slots__ = ("broken", "calls", "decoder", "greeted", "socket")

    def __init__(self, connected: socket.socket, max_bytes: int) -> None:
        self.socket = connected
        self.decoder = Decoder(max_bytes + MAX_HEAD_BYTES)
        self.greeted = self.broken = False
        self.calls: deque[Frame] = deque()


class BlockingLinkServer:
    """Serves methods with one response each over links, in `thread`.

    Args:
        listen: unix:PATH.
        thread: where handlers are called and sockets read.
        max_message_bytes: largest request.
        on_given_up: called on the event loop, perhaps several times, when nobody waits for the call under way any more.
        busy: the error for a call that comes while another one takes long.
    """

    def __init__(
        self,
        listen: str,
        thread: WorkThread,
        *,
        max_message_bytes: int,
        on_given_up: Callable[[], None],
        busy: Callable[[], RouseError],
    ) -> None:
        self._path, self._thread, self._max_bytes = listen.removeprefix("unix:"), thread, max_message_bytes
        self._on_given_up, self._busy = on_given_up, busy
        self._handlers: dict[bytes, tuple[str, Handler]] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._stopping = False
        # Both threads, under the guard: while a call is under way only the event loop reads and writes, else only the
        # thread does.
        self._guard = threading.Lock()
        self._current: Ongoing | None = None
        self._peers: dict[int, _Peer] = {}
        self._begun = 0
        self._ticking = False
        # The event loop's.
        self._seen = 0
        self._attending: Ongoing | None = None
        self._attended: set[int] = set()

    def add(self, method: str, handler: Handler) -> None:
        """Adds a handler of "/package.Service/Method": called with the request's bytes in the thread, gives the parts
        of the response."""
        self._handlers[method.encode()] = (method, handler)

    async def start(self) -> None:
        """Listens. Raises OSError where the address is taken."""
        self._loop = asyncio.get_running_loop()
        remove(self._path)
        self._listener.bind(self._path)
        os.chmod(self._path, 0o600)
        self._listener.listen(BACKLOG)
        self._thread.watch(self._listener.fileno(), self._accept)

    async def stop(self, drain_s: float) -> None:
        """Accepts no more, tells callers, waits up to `drain_s` for the call under way, and closes."""
        self._stopping = True
        remove(self._path)
        try:
            async with asyncio.timeout(drain_s):
                await self._thread.run(self._leave)
        except TimeoutError:  # it takes place all the same, should the call ever end
            self._abandon()

    def _abandon(self) -> None:
        with self._guard:
            late = self._current
            if late is not None:
                late.answered = late.given_up = True
                error = Unavailable("UNAVAILABLE", "the server stopped while the call was under way")
                self._say(late.peer, Kind.ERROR, late.number, to_status(error))
                self._on_given_up()

    # ---- In the thread, between calls -----------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:  # nobody, or gone again
                return
            connected.setblocking(False)
            if len(self._peers) >= MAX_CONNECTIONS:
                for silent in [peer for peer in self._peers.values() if not peer.greeted]:
                    self._drop(silent)
            if len(self._peers) >= MAX_CONNECTIONS:
                LOG.warning("a link is refused: %d connections are open", len(self._peers))
                connected.close()
                return
            peer = self._peers[connected.fileno()] = _Peer(connected, self._max_bytes)
            self._say(peer, Kind.HELLO, 0, MAGIC)
            self._thread.watch(connected.fileno(), lambda peer=peer: self._readable(peer))  # type: ignore[misc]

    def _readable(self, peer: _Peer) -> None:
        try:
            for frame in self._receive(peer):
                if frame.kind is Kind.CALL:
                    peer.calls.append(frame)
            while peer.calls:
                self._serve(peer, peer.calls.popleft())
        except (ProtocolError, OSError) as error:
            if not isinstance(error, EOFError | ConnectionError):
                LOG.warning("link closed error=%s", error)
            self._drop(peer)
        except Exception as error:  # the thread must go on: it is the only one
            LOG.error("link closed, unexpectedly", exc_info=error)
            self._drop(peer)

    def _serve(self, peer: _Peer, frame: Frame) -> None:
        name, timeout_s, traceparent = read_call_head(frame.head)
        method, handler = self._handlers.get(name, ("", None))
        if handler is None:
            unknown = Internal("UNKNOWN_METHOD", f"{name.decode(errors='replace')} is not served over this link")
            self._send(peer, Kind.ERROR, frame.call, (to_status(unknown),), SEND_S)
            return
        if self._stopping:
            stops = Unavailable("NOT_CONNECTED", "the server stops", retry_after_s=TICK_S)
            self._send(peer, Kind.ERROR, frame.call, (to_status(stops),), SEND_S)
            return
        call = Ongoing(peer, frame.call, timeout_s)
        with self._guard:
            self._current = call
            self._begun += 1
            wake, self._ticking = not self._ticking, True
        if wake:
            self._loop.call_soon_threadsafe(self._tick)
        # As a task has one: nothing of a call is seen by the next.
        contextvars.Context().run(self._answer, call, method, handler, frame.body, traceparent)

    def _answer(self, call: Ongoing, method: str, handler: Handler, body: Buffer, traceparent: str) -> None:
        observed = Observed("link", method, telemetry.from_traceparent(traceparent))
        error: BaseException | None = None
        parts: Sequence[Buffer] = ()
        try:
            parts = handler(body, call)
        except Exception as raised:  # noqa: BLE001 - whatever a handler raises is answered typed, and logged
            error = raised
            if call.given_up:
                late = call.deadline < time.monotonic()
                error = DeadlineExceeded("DEADLINE_EXCEEDED", f"{method} ran out of time") if late else GIVEN_UP
        # First of all: who has the response may send the next call.
        with self._guard:
            self._current = None
        try:
            if error is None and not call.answered:
                self._send(call.peer, Kind.LAST, call.number, parts, call.remaining_s)
        finally:
            typed = observed.end(error)
        if typed is not None and not call.answered:
            self._send(call.peer, Kind.ERROR, call.number, (to_status(typed),), SEND_S)

    def _leave(self) -> None:
        self._close(self._listener)
        for peer in list(self._peers.values()):
            self._say(peer, Kind.CLOSING, 0)
            self._readable(peer)  # refuses what has come: its caller knows then that it did not run
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        if self._peers.pop(peer.socket.fileno(), None) is not None:
            peer.calls.clear()
            self._close(peer.socket)

    def _close(self, ended: socket.socket) -> None:
        """Closes a socket on the event loop, which may be watching it too."""
        descriptor = ended.fileno()
        self._thread.unwatch(descriptor)

        def close() -> None:
            self._ignore(descriptor)
            ended.close()

        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is about to end
            self._loop.call_soon_threadsafe(close)

    def _send(self, peer: _Peer, kind: Kind, call: int, parts: Sequence[Buffer], timeout_s: float) -> None:
        """Raises OSError where the peer is gone or takes nothing in time."""
        size = sum(map(len, parts))
        left: list[Buffer] = [encode(kind, call, body_bytes=size), *parts]
        if size <= JOIN_BYTES:
            left = [b"".join(left)]
        deadline = time.monotonic() + max(timeout_s, TICK_S)
        while left:
            try:
                sent = peer.socket.sendmsg(left)
            except BlockingIOError:
                sent = 0
                poll = select.poll()
                poll.register(peer.socket, select.POLLOUT)
                if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeoutError("a caller does not take its answer") from None
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = memoryview(left[0])[sent:]

    # ---- On the event loop, while a call takes long ---------------------------------------------

    def _tick(self) -> None:
        """Comes by every TICK_S as long as there are calls."""
        with self._guard:
            current = self._current
            if self._begun != self._seen:
                self._seen = self._begun
            elif current is None:
                self._ticking = False
            else:
                self._attend(current)
            if not self._ticking:
                for descriptor in list(self._attended):
                    self._ignore(descriptor)
                return
        self._loop.call_later(TICK_S, self._tick)

    def _attend(self, current: Ongoing) -> None:
        """The same call as at the last tick is still under way."""
        self._attending = current
        for descriptor, peer in self._peers.items():
            if descriptor not in self._attended:
                self._attended.add(descriptor)
                self._loop.add_reader(descriptor, self._overhear, descriptor, peer)
        listener = self._listener.fileno()
        if listener >= 0 and listener not in self._attended:
            self._attended.add(listener)
            self._loop.add_reader(listener, self._overhear, listener, None)
        current.given_up = current.given_up or current.deadline < time.monotonic()
        if current.given_up:
            self._on_given_up()

    def _overhear(self, descriptor: int, peer: _Peer | None) -> None:
        """There is something to read, or somebody to accept (no peer), while a call is under way."""
        with self._guard:
            current = self._current
            if current is None or current is not self._attending:  # the thread reads again
                self._ignore(descriptor)
                return
            if peer is None:
                self._accept()
                return
            try:
                for frame in self._receive(peer):
                    self._heard(current, peer, frame)
            except (ProtocolError, OSError):
                self._ignore(descriptor)
                self._break(peer)
                self._give_up(current, peer, current.number)

    def _heard(self, current: Ongoing, peer: _Peer, frame: Frame) -> None:
        if frame.kind is Kind.CALL:
            self._say(peer, Kind.ERROR, frame.call, to_status(self._busy()))
        elif frame.kind is Kind.CANCEL:
            for waiting in [call for call in peer.calls if call.call == frame.call]:
                peer.calls.remove(waiting)
            self._give_up(current, peer, frame.call)

    def _give_up(self, current: Ongoing, peer: _Peer, number: int) -> None:
        if current.peer is peer and current.number == number:
            current.given_up = True
            self._on_given_up()

    def _ignore(self, descriptor: int) -> None:
        if descriptor in self._attended:
            self._attended.discard(descriptor)
            self._loop.remove_reader(descriptor)

    # ---- In either, whoever's turn it is --------------------------------------------------------

    def _receive(self, peer: _Peer) -> list[Frame]:
        """What there is but for the hello. Raises ProtocolError, OSError; EOFError at the end."""
        if peer.broken:
            raise _Ended
        try:
            count = peer.socket.recv_into(peer.decoder.space())
        except BlockingIOError:
            return []
        if count == 0:
            raise _Ended
        frames = peer.decoder.received(count)
        if frames and not peer.greeted:
            first = frames.pop(0)
            if first.kind is not Kind.HELLO or first.body != MAGIC:
                raise ProtocolError("the first frame is no hello of this version")
            peer.greeted = True
        for frame in frames:
            if frame.kind not in (Kind.CALL, Kind.CANCEL, Kind.CREDIT):
                raise ProtocolError(f"a client sends no {frame.kind.name}")
        return frames

    def _say(self, peer: _Peer, kind: Kind, call: int, body: bytes = b"") -> None:
        """Sends something small at once; a peer that does not take it is cut off."""
        data = encode(kind, call, body_bytes=len(body)) + body
        try:
            whole = peer.socket.send(data) == len(data)
        except OSError:
            whole = False
        if not whole:
            self._break(peer)

    def _break(self, peer: _Peer) -> None:
        """The thread then finds the connection at its end, and drops it; what has come of it is not served."""
        peer.broken = True
        peer.calls.clear()
        with contextlib.suppress(OSError):
            peer.socket.shutdown(socket.SHUT_RDWR)


class _Ended(EOFError, OSError):
    """The peer closed the connection."""
