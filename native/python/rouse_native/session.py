"""An instance's end of a session, message by message (docs/native.md); the `rouse` device does this in C++.

For tools and tests: whoever sends what is no message of the protocol loses the session.
"""

from __future__ import annotations

import struct
from pathlib import Path

from rouse_native._session import SessionClient

SYNC, DONE = 9, 66
_SYNC = struct.Struct("<IHHQ")


class SessionError(Exception):
    """What a session's call failed with.

    Attributes:
        code: name of rouse::Code, as "PEER_GONE".
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(":")[0]


class Session:
    """The rings to an executor. One thread at a time.

    Raises SessionError everywhere: PEER_GONE once the executor has ended or closed the session, DEADLINE where
    something takes too long, MISMATCH where the other side speaks another version.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        """Connects to the session's socket."""
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
