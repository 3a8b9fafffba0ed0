"""An instance's end of a session (docs/native.md): its socket, and, for tools and tests, its messages.

The `rouse` device sends and reads messages in C++. Whoever sends what is no message loses the session.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

SYNC, DONE = 9, 66
_SYNC = struct.Struct("<IHHQ")
_GREETING = struct.Struct("<QII")
_MAGIC, _VERSION = 0x4E4F495353455352, 1


class SessionError(Exception):
    """What a session's call failed with.

    Attributes:
        code: name of rouse::Code, as "PEER_GONE".
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(":")[0]


def dial(path: Path, timeout_s: float) -> tuple[int, int]:
    """Connects to a session's socket and takes the rings.

    Returns two descriptors that the caller closes: the rings' memory, and the connection. The executor keeps the
    session as long as the connection is open; its hang-up says that the executor has ended. Raises SessionError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
            greeting, rings, _, _ = socket.recv_fds(connection, _GREETING.size, 1)
        except TimeoutError:
            raise SessionError(f"DEADLINE: the executor at {path} did not greet within {timeout_s:g} s") from None
        except OSError as error:
            raise SessionError(f"PEER_GONE: no executor listens at {path}: {error}") from None
        good = len(greeting) == _GREETING.size and _GREETING.unpack(greeting)[:2] == (_MAGIC, _VERSION)
        if not good or len(rings) != 1:
            for descriptor in rings:
                os.close(descriptor)
            raise SessionError(f"MISMATCH: what listens at {path} is no session of version {_VERSION}")
        connection.setblocking(True)
        return rings[0], connection.detach()


class Session:
    """The rings to an executor, message by message. One thread at a time.

    Raises SessionError everywhere: PEER_GONE once the executor has ended or closed the session, DEADLINE where
    something takes too long, MISMATCH where the other side speaks another version.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        """Connects to the session's socket."""
        from rouse_native._session import SessionClient

        try:
            self._client = SessionClient.connect(str(path), timeout_s)
        except RuntimeError as error:
            raise SessionError(str(error)) from None

    def send(self, message: bytes, timeout_s: float) -> None:
        """Sends one message: its first four bytes are its size, a multiple of 8."""
        try:
            self._client.send(message, timeout_s)
        except RuntimeError as error:
            raise SessionError(str(error)) from None

    def receive(self, timeout_s: float) -> bytes:
        """The next message."""
        try:
            message = self._client.receive(timeout_s)
        except RuntimeError as error:
            raise SessionError(str(error)) from None
        if message is None:
            raise SessionError(f"DEADLINE: the executor sent nothing within {timeout_s:g} s")
        return message

    def sync(self, token: int, timeout_s: float) -> None:
        """Returns when the executor has done all that was sent before."""
        self.send(_SYNC.pack(_SYNC.size, SYNC, 0, token), timeout_s)
        answer = self.receive(timeout_s)
        if answer != _SYNC.pack(_SYNC.size, DONE, 0, token):
            raise SessionError(f"FAILED: the executor answered a SYNC with {answer[:64]!r}")
