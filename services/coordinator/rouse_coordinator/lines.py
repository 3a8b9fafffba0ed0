"""What instances print, passed on as whole log lines that name their function."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Protocol

from rouse_common.clock import Clock

MAX_LINE_BYTES = 16 * 1024
KEPT_LINES = 20
CHUNK_BYTES = 64 * 1024


class Reader(Protocol):
    """The end of a pipe."""

    async def read(self, n: int) -> bytes: ...


class LinePump:
    """Reads a process's output and writes one log line a line.

    Lines in the mesh's own format that name this very instance pass unchanged; anything else (a library that
    writes to the file descriptor, a crash report of the interpreter) gets time, function and instance in front, so
    no function can put lines into another one's log.

    Args:
        write: where lines go; standard error by default.
    """

    def __init__(
        self, function: str, instance_id: str, clock: Clock, write: Callable[[str], object] | None = None
    ) -> None:
        self._tag = f"function={function} instance={instance_id}"
        self._ours = re.compile(rf"\d{{4}}-\d\d-\d\dT\S+Z \w+ +executor +trace=\S+ {re.escape(self._tag)} ")
        self._clock = clock
        self._write = write or _to_stderr
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)

    @property
    def last_lines(self) -> list[str]:
        """The last lines, without what stands in front of their message."""
        return list(self._kept)

    async def run(self, reader: Reader) -> None:
        """Until the pipe's end. Lines longer than MAX_LINE_BYTES are cut, and what follows is dropped."""
        rest, dropping = b"", False
        while chunk := await reader.read(CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if not dropping:
                    self._emit(line)
                dropping = False
            if len(rest) > MAX_LINE_BYTES:
                if not dropping:
                    self._emit(rest)
                rest, dropping = b"", True
        if rest and not dropping:
            self._emit(rest)

    def _emit(self, raw: bytes) -> None:
        text = raw[:MAX_LINE_BYTES].decode("utf-8", "backslashreplace").rstrip("\r")
        if len(raw) > MAX_LINE_BYTES:
            text += "… (cut)"
        if not text.strip():
            return
        match = self._ours.match(text)
        if match:
            self._kept.append(text[match.end() :])
            self._write(text)
            return
        self._kept.append(text)
        self._write(f"{_stamp(self._clock.now())} INFO    executor         trace=- {self._tag} raw: {text}")


async def read_pipe(pipe: IO[bytes], pump: LinePump) -> None:
    """Passes on what comes through a pipe, until its end or cancelled; closes it."""
    reader = asyncio.StreamReader(limit=CHUNK_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        await pump.run(reader)
    finally:
        transport.close()


def _stamp(now: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
