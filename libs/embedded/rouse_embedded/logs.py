"""The mesh's one log: every process's lines in one file, rotated by size."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

FILE_NAME = "rouse.log"
FILE_BYTES = 8 << 20
KEPT_FILES = 4
MAX_LINE_BYTES = 32 << 10

# The form of rouse_common.logs.LineFormatter.
FORMATTED = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z (?P<level>[A-Z]+) +(?P<service>\S+) +trace=(?P<trace>\S+) (?P<text>.*)"
)


# How PostgreSQL, NATS and Python say that something is wrong.
FOREIGN_LEVELS = (
    ("ERROR", re.compile(r"\b(ERROR|FATAL|PANIC):  |\[(ERR|FTL)\]|^Traceback \(most recent")),
    ("WARNING", re.compile(r"\bWARNING:  |\[WRN\]")),
)


@dataclass(frozen=True)
class Line:
    """One line of a process: who wrote it, its level, and what it says."""

    process: str
    level: str
    text: str


class LogSink:
    """Writes lines to `folder/rouse.log`; KEPT_FILES older ones of FILE_BYTES are kept beside it."""

    def __init__(self, folder: Path, *, file_bytes: int = FILE_BYTES, kept_files: int = KEPT_FILES) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / FILE_NAME
        self._file_bytes, self._kept_files = file_bytes, kept_files
        self._file: BinaryIO = self.path.open("ab", buffering=0)
        self._size = self._file.tell()

    def write(self, process: str, level: str, raw: str) -> Line:
        """Keeps one line. One that has no time and level of its own gets them, with `level`."""
        known = FORMATTED.match(raw)
        if known is None:
            now = time.time()
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
            level = _level(raw) or level
            row = f"{stamp}.{int(now % 1 * 1000):03d}Z {level:<7} {process:<16} trace=- {raw}"
        else:
            row = raw
        data = row.encode(errors="replace")[:MAX_LINE_BYTES] + b"\n"
        if self._size + len(data) > self._file_bytes:
            self._rotate()
        self._file.write(data)
        self._size += len(data)
        return Line(process, known["level"], known["text"]) if known else Line(process, level, raw)

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._kept_files, 0, -1):
            older = self.path.with_name(f"{FILE_NAME}.{number}")
            newer = self.path.with_name(f"{FILE_NAME}.{number - 1}") if number > 1 else self.path
            if newer.exists():
                newer.replace(older)
        self._file = self.path.open("ab", buffering=0)
        self._size = 0


def _level(raw: str) -> str | None:
    return next((level for level, pattern in FOREIGN_LEVELS if pattern.search(raw)), None)
