"""What an instance says: its own log lines and what user code prints, one line each, named by function.

Lines go to the process's standard error, which the coordinator reads. What is printed does not pass through
`logging`, so user code that sets logging up for itself cannot make a loop of it.
"""

from __future__ import annotations

import copy
import io
import logging
import os
import sys
import threading
from collections.abc import Iterable

from rouse_common.logs import LineFormatter

MAX_LINE_CHARS = 4000
SERVICE = "executor"


class InstanceFormatter(LineFormatter):
    """The mesh's line format with `function=NAME instance=ID` in front of every message."""

    def __init__(self, function: str, instance: str) -> None:
        super().__init__(SERVICE)
        self._tag = f"function={function} instance={instance}"

    def format(self, record: logging.LogRecord) -> str:
        tagged = copy.copy(record)
        message = record.getMessage()
        if len(message) > MAX_LINE_CHARS:
            message = message[:MAX_LINE_CHARS] + f"… ({len(message)} characters)"
        tagged.msg, tagged.args = f"{self._tag} {message}", None
        return super().format(tagged)


class PrintedLines(io.TextIOBase):
    """A text stream whose every line becomes a log line; stands in for sys.stdout and sys.stderr."""

    def __init__(self, formatter: logging.Formatter, stream: str, descriptor: int) -> None:
        self._formatter, self._stream, self._descriptor = formatter, stream, descriptor
        self._lock = threading.Lock()
        self._partial = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        with self._lock:
            *lines, rest = (self._partial + text).split("\n")
            if len(rest) > MAX_LINE_CHARS:
                lines, rest = [*lines, rest], ""
            self._partial = rest
            self._emit(lines)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Lines are sent as they end; an unfinished one waits for its end or for `finish`."""

    def finish(self) -> None:
        """Sends an unfinished line, as at the end of a request."""
        with self._lock:
            if self._partial:
                self._emit([self._partial])
                self._partial = ""

    def _emit(self, lines: list[str]) -> None:
        for line in lines:
            shown = line.rstrip("\r").rpartition("\r")[2]  # a progress bar's last state
            if not shown.strip():
                continue
            record = logging.LogRecord(self._stream, logging.INFO, "", 0, f"{self._stream}: {shown}", None, None)
            os.write(self._descriptor, (self._formatter.format(record) + "\n").encode("utf-8", "backslashreplace"))


def configure(function: str, instance: str, level: str) -> list[PrintedLines]:
    """Sends log lines and everything that is printed to standard error in our format.

    Returns the streams that stand in for sys.stdout and sys.stderr.
    """
    formatter = InstanceFormatter(function, instance)
    handler = logging.StreamHandler(open(2, "w", buffering=1, closefd=False, errors="backslashreplace"))  # noqa: SIM115
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for noisy in ("asyncio", "opentelemetry", "urllib3", "filelock", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    printed = [PrintedLines(formatter, stream, 2) for stream in ("stdout", "stderr")]
    sys.stdout, sys.stderr = printed
    return printed
