"""Reads the mesh's log file: its end, and what is added to it."""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from rouse_common.errors import FailedPrecondition

FILE = "rouse.log"
# The service's name in lines of instances (rouse_runtime.output).
EXECUTOR = "executor"
DEFAULT_TAIL, MAX_TAIL = 200, 10_000
BLOCK = 256 << 10
# What is searched for the last matching lines, from the end backwards.
MAX_SEARCHED = 128 << 20
MAX_LINE = 64 << 10
MAX_KEPT = 9
LINES_A_MESSAGE = 500
POLL_S = 0.2


@dataclass(frozen=True)
class Filter:
    """Which lines are wanted; empty fields let all pass.

    Args:
        function: lines with the word function=NAME.
        service: lines whose third column is it (rouse_common.logs.LineFormatter).
        trace_id: lines with the word trace=ID.
        instance: lines with the word instance=ID: what it said, and what was said of it.
    """

    function: str = ""
    service: str = ""
    trace_id: str = ""
    instance: str = ""

    def passes(self, line: str) -> bool:
        if self.trace_id and f"trace={self.trace_id}" not in line.split():
            return False
        if self.service and line.split(None, 3)[2:3] != [self.service]:
            return False
        return (not self.function or _names(line, "function", self.function)) and (
            not self.instance or _names(line, "instance", self.instance)
        )


def _names(line: str, word: str, name: str) -> bool:
    columns = line.split(None, 6)
    if columns[2:3] == [EXECUTOR]:
        # What an instance says stands behind its two tags: it cannot speak for others by naming them.
        return f"{word}={name}" in columns[4:6]
    return re.search(rf"(?<!\S){word}={re.escape(name)}(?=[\s,;:|)]|$)", line) is not None


class Logs:
    """The log of a folder; empty where the mesh sends its logs elsewhere."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / FILE if folder else None

    async def read(self, wanted: Filter, tail: int, follow: bool, stopping: asyncio.Event) -> AsyncIterator[list[str]]:
        """The last `tail` lines that pass, oldest first, in lots; with `follow` then what is added, until
        `stopping` is set. Raises FailedPrecondition LOGS_NOT_LOCAL."""
        if self._path is None:
            raise FailedPrecondition(
                "LOGS_NOT_LOCAL", "this mesh keeps no log file: look where its services' standard error goes"
            )
        tail = min(tail or DEFAULT_TAIL, MAX_TAIL)
        lines, position = await asyncio.to_thread(read_tail, self._path, wanted, tail)
        for start in range(0, len(lines), LINES_A_MESSAGE):
            yield lines[start : start + LINES_A_MESSAGE]
        while follow and not stopping.is_set():
            try:
                async with asyncio.timeout(POLL_S):
                    await stopping.wait()
            except TimeoutError:
                lines, position = await asyncio.to_thread(read_added, self._path, wanted, position)
                if lines:
                    yield lines


@dataclass(frozen=True)
class Position:
    """How far a log was read: the file, by its inode, and the bytes of it."""

    inode: int
    offset: int


def generations(path: Path) -> Iterator[Path]:
    """The log and the files that it was renamed to when it was full, newest first."""
    yield path
    for number in range(1, MAX_KEPT + 1):
        yield path.with_name(f"{path.name}.{number}")


def read_tail(path: Path, wanted: Filter, tail: int) -> tuple[list[str], Position]:
    """The last `tail` lines that pass, oldest first, over the log and its predecessors; and where the log
    ended. Blocks."""
    found: deque[str] = deque()
    searched = 0
    position = Position(0, 0)
    for file_path in generations(path):
        try:
            file = file_path.open("rb")
        except FileNotFoundError:
            break
        with file:
            stat = os.fstat(file.fileno())
            end = stat.st_size
            if file_path == path:
                end = _last_newline(file.fileno(), end)
                position = Position(stat.st_ino, end)
            for line in _backwards(file.fileno(), end, MAX_SEARCHED - searched):
                text = line.decode(errors="replace")
                if wanted.passes(text):
                    found.appendleft(text)
                    if len(found) == tail:
                        return list(found), position
            searched += end
        if searched >= MAX_SEARCHED:
            break
    return list(found), position


def read_added(path: Path, wanted: Filter, position: Position) -> tuple[list[str], Position]:
    """Up to MAX_TAIL complete lines behind `position` that pass, and the new position; follows the log over
    its renaming. Blocks."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return [], position
    with file:
        stat = os.fstat(file.fileno())
        if stat.st_ino == position.inode and stat.st_size >= position.offset:
            return _forwards(file.fileno(), wanted, position)
    # A new file: first what came last into the old one.
    for older in list(generations(path))[1:]:
        try:
            old = older.open("rb")
        except FileNotFoundError:
            break
        with old:
            if os.fstat(old.fileno()).st_ino == position.inode:
                lines, rest = _forwards(old.fileno(), wanted, position)
                if rest != position:
                    return lines, rest
                break
    return [], Position(stat.st_ino, 0)


def _forwards(descriptor: int, wanted: Filter, position: Position) -> tuple[list[str], Position]:
    data = os.pread(descriptor, BLOCK, position.offset)
    end = data.rfind(b"\n") + 1
    if not end and len(data) == BLOCK:
        end = BLOCK  # one line longer than any that is ours: skipped in pieces
    lines = [line for line in data[:end].decode(errors="replace").splitlines() if wanted.passes(line)]
    return lines, Position(position.inode, position.offset + end)


def _last_newline(descriptor: int, end: int) -> int:
    """The offset behind the last complete line."""
    start = max(0, end - MAX_LINE)
    return start + os.pread(descriptor, end - start, start).rfind(b"\n") + 1


def _backwards(descriptor: int, end: int, limit: int) -> Iterator[bytes]:
    """The lines before `end`, the last one first; within `limit` bytes."""
    stop = max(0, end - limit)
    rest = b""
    while end > stop:
        start = max(stop, end - BLOCK)
        data = os.pread(descriptor, end - start, start) + rest
        lines = data.split(b"\n")
        rest = lines[0][-MAX_LINE:]
        for line in reversed(lines[1:]):
            if line:
                yield line[:MAX_LINE]
        end = start
    if rest and stop == 0:
        yield rest
