"""Numbers, sizes and times for people, and the tables they stand in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from rich import box
from rich.markup import escape
from rich.table import Table

import rouse

MAX_WORDS_CHARS = 240
STATE_STYLES = {
    "READY": "green",
    "SERVING": "green",
    "DEVICE": "green",
    "EXECUTING": "bold green",
    "HOST": "cyan",
    "DISK": "blue",
    "SLEEPING": "blue",
    "WAKING": "yellow",
    "SWAPPING_IN": "yellow",
    "PENDING": "yellow",
    "STARTING": "yellow",
    "STOPPING": "yellow",
    "NOT_SERVING": "yellow",
    "FAILED": "bold red",
    "LOST": "bold red",
    "UNREACHABLE": "bold red",
}


def state(name: str) -> str:
    """A state in its colour, as console markup."""
    style = STATE_STYLES.get(name, "")
    return f"[{style}]{name}[/{style}]" if style else name


def size(count: int) -> str:
    """Bytes with a binary unit, as 418 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def milliseconds(value: float) -> str:
    """A duration given in milliseconds, as 0.42 ms, 61.2 ms or 1.92 s."""
    if value >= 60_000:
        return f"{value / 60_000:.1f} min"
    if value >= 1000:
        return f"{value / 1000:.2f} s"
    return f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def count(number: int, what: str) -> str:
    """As `1 request` or `7 requests`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def short(words: str) -> str:
    """The beginning of a long text, on one line, escaped for console markup; --json has all of it."""
    line = " ".join(words.replace("\\n", " ").split())
    return escape(line if len(line) <= MAX_WORDS_CHARS else line[: MAX_WORDS_CHARS - 1] + "…")


def ago(at: datetime | None) -> str:
    """How long ago, as 12 s ago; empty where unknown."""
    if at is None:
        return ""
    seconds = max(0.0, (datetime.now(UTC) - at).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def traffic(shares: Mapping[int, int]) -> str:
    """As `3`, or `1 90 %, 2 10 %` where versions share the requests."""
    if len(shares) == 1:
        return str(next(iter(shares)))
    return ", ".join(f"{version} {percent} %" for version, percent in sorted(shares.items()))


def tensor(spec: rouse.TensorSpec) -> str:
    """As `image FP32[?, 1, 8, 8]`; ? is any size. Brackets are escaped for console markup."""
    shape = ", ".join("?" if s == -1 else str(s) for s in spec.shape)
    return f"{spec.name} {spec.datatype}\\[{shape}]"


def table(*columns: str, title: str = "") -> Table:
    """An empty table. A column that begins with '>' stands to the right, one that begins with '!' never wraps."""
    made = Table(
        box=box.SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        right, whole = column.startswith(">"), column.startswith((">", "!"))
        made.add_column(
            column.lstrip(">!"),
            justify="right" if right else "left",
            no_wrap=whole,
            overflow="fold",
            header_style="dim",
        )
    return made
