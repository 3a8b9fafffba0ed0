"""Reads the spans of one trace from the files that every service on this machine keeps them in."""

from __future__ import annotations

import asyncio
import json
import mmap
import re
from collections.abc import Sequence
from pathlib import Path

from rouse_common.clock import Clock
from rouse_common.errors import FailedPrecondition, InvalidArgument, NotFound
from rouse_common.telemetry import EXPORT_DELAY_MS
from rouse_contracts.functions import Span

MAX_SPANS = 10_000
MAX_FILES = 4096
TRACE_ID = re.compile(r"[0-9a-f]{32}")
# Services write their spans every EXPORT_DELAY_MS: a trace that ended longer ago than this is whole.
SETTLE_S = 3 * EXPORT_DELAY_MS / 1000
MAX_WAIT_S = 2.0
POLL_S = EXPORT_DELAY_MS / 1000
ROOT_SERVICE = "gateway"


class Traces:
    """Traces of a folder; empty where the mesh keeps none."""

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = Path(folder) if folder else None
        self._clock = clock

    async def read(self, trace_id: str, timeout_s: float) -> list[Span]:
        """The spans in the order of their start. Waits briefly for those that are still being written.

        Raises InvalidArgument BAD_TRACE_ID, NotFound TRACE_NOT_FOUND, FailedPrecondition TRACES_NOT_LOCAL.
        """
        wanted = trace_id.lower()
        if not TRACE_ID.fullmatch(wanted):
            raise InvalidArgument("BAD_TRACE_ID", f"'{trace_id[:64]}' is no trace id: want 32 hex digits")
        if self._folder is None:
            raise FailedPrecondition(
                "TRACES_NOT_LOCAL", "this mesh keeps no traces on disk: look where its OTLP endpoint exports them to"
            )
        deadline = self._clock.monotonic() + min(MAX_WAIT_S, timeout_s)
        while True:
            spans = await asyncio.to_thread(collect, self._folder, wanted)
            whole = is_whole(spans) and self._clock.now() - max(s.end_unix_nanos for s in spans) / 1e9 > SETTLE_S
            left_s = deadline - self._clock.monotonic()
            if whole or left_s <= 0:
                break
            await asyncio.sleep(min(POLL_S, left_s))
        if not spans:
            raise NotFound(
                "TRACE_NOT_FOUND",
                f"there is no trace {wanted}; old ones are dropped when the trace files are full",
                trace_id=wanted,
            )
        return spans


def is_whole(spans: Sequence[Span]) -> bool:
    """Whether every span's parent is there, apart from those that clients made themselves."""
    known = {span.span_id for span in spans}
    return bool(spans) and all(
        not span.parent_span_id or span.parent_span_id in known or span.service == ROOT_SERVICE for span in spans
    )


def collect(folder: Path, trace_id: str) -> list[Span]:
    """The spans of a trace in all files of a folder, MAX_SPANS at most, in the order of their start. Blocks."""
    found: dict[str, Span] = {}
    for path in sorted(folder.glob("*.jsonl"))[:MAX_FILES]:
        for line in _lines(path, trace_id.encode()):
            span = _parse(line)
            # Read while the file was replaced, a span may be seen twice.
            if span is not None and span.trace_id == trace_id:
                found[span.span_id] = span
            if len(found) >= MAX_SPANS:
                break
    return sorted(found.values(), key=lambda span: (span.start_unix_nanos, span.end_unix_nanos))


def _lines(path: Path, needle: bytes) -> list[bytes]:
    """The complete lines of a file that hold `needle`; none where the file is gone or empty."""
    lines: list[bytes] = []
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            position = view.find(needle)
            while position >= 0 and len(lines) < MAX_SPANS:
                start = view.rfind(b"\n", 0, position) + 1
                end = view.find(b"\n", position)
                if end < 0:
                    break  # still being written
                lines.append(view[start:end])
                position = view.find(needle, end)
    except (FileNotFoundError, ValueError):  # mmap says ValueError for an empty file
        return lines
    return lines


def _parse(line: bytes) -> Span | None:
    """A line of rouse_common.telemetry.JsonLinesExporter; None for one that a dying process cut off."""
    try:
        row = json.loads(line)
        return Span(**row)
    except (ValueError, TypeError):
        return None
