"""On which line of a TOML text a key stands: the parser of the standard library does not tell."""

from __future__ import annotations

import re
from collections import Counter

_KEY = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)\s*""")
_CLOSING = {"[": "]", "{": "}"}


class Lines:
    """Lines by the path of a key, as "scaling.min_instances" or "inputs[0].shape".

    Args:
        text: valid TOML; keys within inline tables and lists are found by what they stand in.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines: dict[str, int] = {}
        self._read()

    def of(self, path: str) -> int | None:
        """The line of a key, counted from 1, or of the nearest table that it would stand in."""
        while path:
            if path in self._lines:
                return self._lines[path]
            path = path[: max(path.rfind("."), path.rfind("["))] if "." in path or "[" in path else ""
        return None

    def _read(self) -> None:
        at, table = 0, ""
        entries: Counter[str] = Counter()
        while at < len(self._text):
            if self._text[at] in " \t\r\n":
                at += 1
            elif self._text[at] == "#":
                at = self._end_of_line(at)
            elif self._text[at] == "[":
                whole = self._text.startswith("[[", at)
                path, end = self._keys(at + (2 if whole else 1))
                table = _inside(path, entries)
                if whole:
                    table = f"{path}[{entries[path]}]"
                    entries[path] += 1
                self._note(table, at)
                at = self._end_of_line(end)
            else:
                path, end = self._keys(at)
                self._note(f"{table}.{path}" if table else path, at)
                at = self._skip_value(end + 1)

    def _note(self, path: str, at: int) -> None:
        line = self._text.count("\n", 0, at) + 1
        self._lines.setdefault(path, line)
        self._lines.setdefault(path.partition("[")[0], line)

    def _keys(self, at: int) -> tuple[str, int]:
        """Keys joined by points, and where they end: at the "=" or the "]"."""
        parts = []
        while (match := _KEY.match(self._text, at)) is not None:
            parts.append(match[1].strip("\"'"))
            at = match.end()
            if not self._text.startswith(".", at):
                break
            at += 1
        return ".".join(parts), max(at, 1)

    def _skip_value(self, at: int) -> int:
        """Where the line after a value begins."""
        open_brackets: list[str] = []
        while at < len(self._text):
            character = self._text[at]
            if character in "\"'":
                at = self._skip_text(at)
                continue
            if character == "#":
                at = self._end_of_line(at)
                continue
            if character in _CLOSING:
                open_brackets.append(_CLOSING[character])
            elif open_brackets and character == open_brackets[-1]:
                open_brackets.pop()
            elif character == "\n" and not open_brackets:
                return at + 1
            at += 1
        return at

    def _skip_text(self, at: int) -> int:
        quote = self._text[at]
        mark = quote * 3 if self._text.startswith(quote * 3, at) else quote
        at += len(mark)
        while at < len(self._text) and not self._text.startswith(mark, at):
            at += 2 if quote == '"' and self._text[at] == "\\" else 1
        return at + len(mark)

    def _end_of_line(self, at: int) -> int:
        end = self._text.find("\n", at)
        return len(self._text) if end < 0 else end


def _inside(path: str, entries: Counter[str]) -> str:
    """A table below an array of tables belongs to its last entry."""
    for array, count in entries.items():
        if path.startswith(f"{array}."):
            return f"{array}[{count - 1}]{path[len(array) :]}"
    return path
