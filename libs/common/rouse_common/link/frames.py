"""The frames of a link: their layout, and how they are cut out of a stream of bytes.

A frame is a header of 16 bytes (length of what follows, kind, length of the head, call id; little-endian), a head
and a body. Nothing that a peer says is believed before it is checked.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple, TypeAlias

Buffer: TypeAlias = bytes | memoryview

HEADER = struct.Struct("<IBxHQ")
MAGIC = b"rouse-link/1"
# Of a head: method, deadline, traceparent.
MAX_HEAD_BYTES = 1024
# Frames up to this size are cut out of the receive buffer; larger ones are read into memory of their own.
SMALL_BYTES = 64 << 10
BUFFER_BYTES = 4 * SMALL_BYTES


class Kind(IntEnum):
    """What a frame is."""

    # First frame in each direction: body is MAGIC.
    HELLO = 0
    # Client: head is the call's (see CallHead), body the request.
    CALL = 1
    # Client: the call is given up; nothing of it is answered any more.
    CANCEL = 2
    # Client: body is the number (u32) of further responses that the call may send.
    CREDIT = 3
    # Server: body is one response; more may follow.
    MESSAGE = 4
    # Server: body is the last response.
    LAST = 5
    # Server: the call ended well; body is empty.
    END = 6
    # Server: the call ended; body is a google.rpc.Status.
    ERROR = 7
    # Server: it stops; calls that are under way are answered, new ones go elsewhere.
    CLOSING = 8


class ProtocolError(Exception):
    """The peer sent what is no frame of a link."""


class Frame(NamedTuple):
    """One frame as it was received."""

    kind: Kind
    call: int
    head: bytes
    body: Buffer


CREDIT = struct.Struct("<I")
_CALL_HEAD = struct.Struct("<QB")
_KINDS = {int(kind): kind for kind in Kind}


def encode(kind: Kind, call: int, head: bytes = b"", body_bytes: int = 0) -> bytes:
    """A frame but for its body, which has `body_bytes` bytes."""
    return HEADER.pack(len(head) + body_bytes, kind, len(head), call) + head


def call_head(method: bytes, timeout_s: float, traceparent: str) -> bytes:
    """The head of a CALL."""
    return _CALL_HEAD.pack(max(1, int(timeout_s * 1e6)), len(method)) + method + traceparent.encode()


def read_call_head(head: bytes) -> tuple[bytes, float, str]:
    """Method, timeout in seconds, traceparent. Raises ProtocolError."""
    try:
        micros, size = _CALL_HEAD.unpack_from(head)
        start = _CALL_HEAD.size
        if len(head) < start + size:
            raise ProtocolError("the head of a call is shorter than its method")
        return head[start : start + size], micros / 1e6, head[start + size :].decode("ascii")
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"the head of a call cannot be read: {error}") from None


class Decoder:
    """Cuts frames out of what a connection receives, with one copy at most: small frames out of one buffer, large
    ones received straight into memory of their own.

    Args:
        max_bytes: largest head and body together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._large: memoryview | None = None
        self._large_head: tuple[Kind, int, int] = (Kind.HELLO, 0, 0)
        self._filled = 0

    @property
    def waiting(self) -> bool:
        """Whether part of a frame is there."""
        return self._large is not None or self._start != self._end

    def space(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return self._view[self._end :] if self._large is None else self._large[self._filled :]

    def received(self, count: int) -> list[Frame]:
        """The frames that `count` bytes more in `space()` complete. Raises ProtocolError; useless from then on."""
        if self._large is not None:
            self._filled += count
            if self._filled < len(self._large):
                return []
            return [self._finish_large(self._large)]
        self._end += count
        frames: list[Frame] = []
        while self._end - self._start >= HEADER.size:
            length, number, head, call = HEADER.unpack_from(self._buffer, self._start)
            kind = self._check(length, number, head)
            start = self._start + HEADER.size
            if length > SMALL_BYTES:
                self._large_head = (kind, head, call)
                large = self._begin_large(start, length)
                if self._filled < length:
                    break
                frames.append(self._finish_large(large))
                continue
            if self._end - start < length:
                break
            self._start = start + length
            middle = start + head
            frames.append(Frame(kind, call, bytes(self._view[start:middle]), bytes(self._view[middle : self._start])))
        self._compact()
        return frames

    def _check(self, length: int, number: int, head: int) -> Kind:
        kind = _KINDS.get(number)
        if kind is None:
            raise ProtocolError(f"there is no frame of kind {number}; is the peer a link of this mesh?")
        if head > length or head > MAX_HEAD_BYTES:
            raise ProtocolError(f"a head of {head} bytes in a frame of {length}")
        if length > self._max_bytes:
            raise ProtocolError(f"a frame of {length} bytes; at most {self._max_bytes} are allowed")
        return kind

    def _begin_large(self, start: int, length: int) -> memoryview:
        """Gives a large frame memory of its own, with what is there of it."""
        have = min(self._end - start, length)
        self._large = memoryview(bytearray(length))
        self._large[:have] = self._view[start : start + have]
        self._filled = have
        self._start = start + have
        return self._large

    def _finish_large(self, large: memoryview) -> Frame:
        kind, head, call = self._large_head
        self._large = None
        return Frame(kind, call, bytes(large[:head]), large[head:])

    def _compact(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif BUFFER_BYTES - self._end < SMALL_BYTES + HEADER.size:
            rest = self._end - self._start
            self._buffer[:rest] = self._buffer[self._start : self._end]
            self._start, self._end = 0, rest
