"""A bounded file of decisions, a line each, for replaying them later."""

from __future__ import annotations

from pathlib import Path

MAX_BYTES = 64 << 20


class DecisionLog:
    """Appends lines to a file until it has its size; then it says nothing more.

    Args:
        path: the file; what is in it stays.
        max_bytes: how large it may become.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._left = max_bytes - self._file.tell()

    def write(self, line: str) -> None:
        """Adds a line, where there is room for all of it."""
        size = len(line.encode()) + 1
        if size <= self._left:
            self._left -= size
            self._file.write(line + "\n")
        else:
            # A gap would not replay as a history: it ends here.
            self._left = 0

    def close(self) -> None:
        self._file.close()
