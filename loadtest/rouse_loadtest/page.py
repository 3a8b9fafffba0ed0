"""One run as one HTML file that needs nothing beside it: measures, what was printed, pictures, machine and command."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TextIO

from rouse_loadtest.report import MEASURE_HEADER, Measure, measure_rows

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse } td, th { padding: .2em .8em; border-bottom: 1px solid #ddd; text-align: right }
td:first-child, th:first-child { text-align: left } .bad { color: #b00020; font-weight: 600 }
pre { background: #f6f6f6; padding: 1em; overflow-x: auto; font-size: 13px } img { max-width: 100%; height: auto }
"""


@dataclass(frozen=True)
class Told:
    """A run as its page tells it.

    Args:
        name, title: of the scenario.
        began: when it began.
        commit: what was measured.
        command: that measures the same again.
        where: the machine.
        measures: what came out.
        printed: everything that the scenario printed.
        pictures: files that are put into the page.
    """

    name: str
    title: str
    began: datetime
    commit: str
    command: str
    where: Mapping[str, object]
    measures: Sequence[Measure]
    printed: str
    pictures: Sequence[Path]


class _Both(io.TextIOBase):
    """Writes to two places."""

    def __init__(self, one: TextIO, other: io.StringIO) -> None:
        self._one, self._other = one, other

    def write(self, text: str) -> int:
        self._other.write(text)
        return self._one.write(text)

    def flush(self) -> None:
        self._one.flush()


@contextmanager
def listening() -> Iterator[Callable[[], str]]:
    """Keeps what is printed in the block, which is printed all the same; gives what returns it."""
    kept = io.StringIO()
    with redirect_stdout(_Both(sys.stdout, kept)):
        yield kept.getvalue


def new_pictures(folder: Path, since: float) -> list[Path]:
    """Pictures in a folder that were written at that time (seconds since 1970) or later, by name."""
    found = [path for path in folder.glob("*") if path.suffix in KINDS and path.stat().st_mtime >= since]
    return sorted(found)


def render(told: Told) -> str:
    """The page."""
    facts = [
        ("date", told.began.isoformat(timespec="seconds")),
        ("commit", told.commit or "not in a checkout"),
        ("command", told.command),
        *((name.replace("_", " "), str(value)) for name, value in told.where.items()),
    ]
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(told.name)}</title><style>{STYLE}</style></head>',
        f"<body><h1>{escape(told.name)}</h1><p>{escape(told.title)}</p>",
        _table(facts, ("run", "")),
        "<h2>Measures</h2>",
        _table([*measure_rows(told.measures)], MEASURE_HEADER),
        "<h2>Notes</h2>",
        _table([(m.name, m.note) for m in told.measures if m.note], ("measure", "what it is")),
        *(_picture(path) for path in told.pictures),
        f"<h2>Printed</h2><pre>{escape(told.printed)}</pre></body></html>",
    ]
    return "\n".join(parts) + "\n"


def write(path: Path, told: Told) -> None:
    """Writes the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(told))


def _table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        bad = ' class="bad"' if "DOES NOT HOLD" in cells else ""
        return f"<tr{bad}>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "\n".join(["<table>", line(header, "th"), *(line(row, "td") for row in rows), "</table>"])


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<h2>{escape(path.stem)}</h2><img alt="{escape(path.stem)}" src="data:{KINDS[path.suffix]};base64,{data}">'
