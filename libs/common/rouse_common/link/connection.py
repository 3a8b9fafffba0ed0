"""One connection of a link: frames in, frames out, and no more of them in memory than the peer takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import cast

from rouse_common.link.frames import MAGIC, MAX_HEAD_BYTES, Buffer, Decoder, Frame, Kind, ProtocolError, encode
from rouse_common.link.sockets import alive

LOG = logging.getLogger(__name__)

# Parts that are smaller are copied together: one write costs more than copying so much.
JOIN_BYTES = 64 << 10
# Bytes that wait for the peer before writers are made to wait.
WRITE_HIGH_BYTES = 1 << 20


class Connection(asyncio.BufferedProtocol):
    """Either end. Says hello when it stands; whoever owns it is told of every further frame.

    Args:
        max_message_bytes: largest message in either direction.
        on_frame: called with every frame after the peer's HELLO; what it raises as ProtocolError ends the connection.
        on_lost: called once when the connection has ended, however it did.
    """

    def __init__(
        self,
        max_message_bytes: int,
        on_frame: Callable[[Connection, Frame], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        # Asking for the running loop is a system call.
        self.loop = asyncio.get_running_loop()
        self._decoder = Decoder(max_message_bytes + MAX_HEAD_BYTES)
        self._on_frame, self._on_lost = on_frame, on_lost
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = asyncio.Event()
        self.greeted: asyncio.Future[None] = self.loop.create_future()
        self.lost = False
        self.peer = ""

    # ---- What the event loop calls ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self.peer = str(transport.get_extra_info("peername") or "")
        alive(transport)
        self.send(Kind.HELLO, 0, parts=(MAGIC,))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.space()

    def buffer_updated(self, count: int) -> None:
        try:
            for frame in self._decoder.received(count):
                if self.lost:
                    return
                if self.greeted.done():
                    self._on_frame(self, frame)
                elif frame.kind is Kind.HELLO and frame.body == MAGIC:
                    self.greeted.set_result(None)
                else:
                    raise ProtocolError("the first frame is no hello of this version")
        except ProtocolError as error:
            LOG.warning("link closed peer=%s error=%s", self.peer, error)
            self.close()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set()
        self._end()

    # ---- What its owner calls -----------------------------------------------------------------

    def send(self, kind: Kind, call: int, head: bytes = b"", parts: Sequence[Buffer] = ()) -> None:
        """Writes one frame; nothing where the connection is gone. The parts must not change afterwards."""
        if self.lost or self._transport is None:
            return
        size = sum(map(len, parts))
        start = encode(kind, call, head, size)
        if size <= JOIN_BYTES:
            self._transport.write(b"".join((start, *parts)))
        else:
            self._transport.writelines([start, *parts])

    @property
    def full(self) -> bool:
        """Whether the peer does not take what is sent: who sends more waits until it is `drained`."""
        return not self._writable.is_set()

    async def drained(self) -> None:
        """Returns when the peer takes what is sent, or is gone."""
        await self._writable.wait()

    def close(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None and not self.lost:
            self._transport.abort()
        self._end()

    async def finish(self, timeout_s: float) -> None:
        """Ends the connection when everything sent was taken, or after `timeout_s` seconds."""
        if self._transport is not None and not self.lost:
            self._transport.close()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._ended.wait()
            except TimeoutError:
                self._transport.abort()
        self._end()

    def _end(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._writable.set()
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError("the connection ended before the peer's hello"))
            self.greeted.exception()  # nobody may be waiting for it
        self._on_lost(self)
