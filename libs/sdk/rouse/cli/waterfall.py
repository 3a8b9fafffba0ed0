"""A trace as a waterfall for the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from rouse.types import Span

STYLES = {
    "swap": "yellow",
    "queue": "blue",
    "wait": "blue",
    "hold": "blue",
    "held": "blue",
    "execute": "green",
}
OTHER, FAILED = "bright_black", "red"
LEGEND = ("swap", "queue", "execute")
MAX_DEPTH = 12
MAX_ROWS = 400
MIN_WIDTH, MIN_BAR = 50, 10
TIME_WIDTH = 11


def waterfall(spans: Sequence[Span], width: int) -> list[Text]:
    """One line a span: who and what, indented by parent; its bar; its milliseconds. Then why, where a span says.

    Fits `width` columns, 50 at least. Spans whose parent is missing stand at the outermost level.
    """
    if not spans:
        return [Text("the trace has no spans")]
    width = max(width, MIN_WIDTH)
    start = min(span.start_unix_nanos for span in spans)
    end = max(max(span.end_unix_nanos, span.start_unix_nanos) for span in spans)
    rows = list(_ordered(spans))
    label_width = min(max(cell_len(_label(s, d)) for s, d in rows), (width - TIME_WIDTH) // 2)
    bar_width = max(MIN_BAR, width - label_width - TIME_WIDTH - 2)
    lines = [_title(spans, (end - start) / 1e6)]
    for span, depth in rows[:MAX_ROWS]:
        line = Text(set_cell_size(_label(span, depth), label_width), style="bold" if span.error else "")
        line.append(" ")
        line.append(_bar(span, start, end, bar_width), style=_style(span))
        line.append(f" {span.duration_ms:>{TIME_WIDTH - 4}.2f} ms", style=_style(span) if _style(span) != OTHER else "")
        lines.append(line)
    if len(rows) > MAX_ROWS:
        lines.append(Text(f"… {len(rows) - MAX_ROWS} more spans", style="dim"))
    return [*lines, *_notes(rows)]


def _title(spans: Sequence[Span], total_ms: float) -> Text:
    services = len({span.service for span in spans})
    line = Text.assemble(
        ("trace ", "dim"), spans[0].trace_id, (f"  {total_ms:.2f} ms, {len(spans)} spans, {services} services  ", "dim")
    )
    for name in LEGEND:
        line.append("■ ", style=STYLES[name])
        line.append(f"{name} ", style="dim")
    return line


def _notes(rows: Sequence[tuple[Span, int]]) -> list[Text]:
    notes = []
    for span, _ in rows[:MAX_ROWS]:
        if span.error:
            notes.append(Text(f"{span.service} · {span.name} failed: {span.error}", style=FAILED))
        elif reason := span.attributes.get("reason"):
            notes.append(Text(f"{span.service} · {span.name}: {reason}", style="dim"))
    return notes


def _ordered(spans: Sequence[Span]) -> Iterator[tuple[Span, int]]:
    """Parents before children, siblings by start; a circle of parents ends at its first repetition."""
    ids = {span.span_id for span in spans}
    children: defaultdict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda s: (s.start_unix_nanos, -s.end_unix_nanos)):
        children[span.parent_span_id if span.parent_span_id in ids else ""].append(span)
    seen: set[str] = set()
    # The rest of `spans` is only reached where parents form a circle.
    stack = [(span, 0) for span in reversed([*children[""], *spans])]
    while stack:
        span, depth = stack.pop()
        if span.span_id in seen:
            continue
        seen.add(span.span_id)
        yield span, depth
        stack += [(child, depth + 1) for child in reversed(children[span.span_id])]


def _label(span: Span, depth: int) -> str:
    name = span.name.rpartition("/")[2]
    return f"{'  ' * min(depth, MAX_DEPTH)}{span.service} · {name}"


def _style(span: Span) -> str:
    return FAILED if span.error else STYLES.get(span.name, OTHER)


def _bar(span: Span, start: int, end: int, width: int) -> str:
    """Blocks of half a column; at least a thin one, so that no span is invisible."""
    total = max(1, end - start)
    last = max(span.end_unix_nanos, span.start_unix_nanos)
    left = round((span.start_unix_nanos - start) / total * width * 2)
    right = round((last - start) / total * width * 2)
    if right <= left:
        place = min(left // 2, width - 1)
        return (" " * place + "▏").ljust(width)
    cells = []
    for cell in range(width):
        first, second = left <= cell * 2 < right, left <= cell * 2 + 1 < right
        cells.append("█" if first and second else "▌" if first else "▐" if second else " ")
    return "".join(cells)
