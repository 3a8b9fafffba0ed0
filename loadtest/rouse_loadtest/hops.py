"""Where the time of a request goes: the spans of its trace, laid side by side."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

# What is left of a span when those below it are taken away is the process's own work and the way to the next one.
Trace: TypeAlias = list[dict[str, object]]
TRIES = 40
PAUSE_S = 0.1
ORDER = ("gateway", "node-router", "gpu-server", "executor")


def traces_since(folder: Path, began_nanos: int, count: int) -> list[Trace]:
    """The complete traces in a mesh's trace folder that began then or later; waits for `count` of them, as services
    write them now and then."""
    for _ in range(TRIES):
        traces: dict[str, Trace] = {}
        for path in sorted(folder.glob("*.jsonl")):
            for line in path.read_text().splitlines():
                span = json.loads(line)
                traces.setdefault(span["trace_id"], []).append(span)
        whole = [t for t in traces.values() if _is_whole(t) and min(map(_start, t)) >= began_nanos]
        if len(whole) >= count:
            return whole
        time.sleep(PAUSE_S)
    return whole


def _is_whole(trace: Trace) -> bool:
    names = {span["name"] for span in trace}
    return "execute" in names and "ModelInfer" in names


def _start(span: Mapping[str, object]) -> int:
    start = span["start_unix_nanos"]
    assert isinstance(start, int)
    return start


def spent(traces: Iterable[Trace]) -> dict[str, list[float]]:
    """Milliseconds by "service: span", less the spans below it."""
    found: dict[str, list[float]] = {}
    for spans in traces:
        below: dict[object, float] = {}
        for span in spans:
            below[span["parent_span_id"]] = below.get(span["parent_span_id"], 0.0) + _ms(span)
        for span in spans:
            key = f"{span['service']}: {span['name']}"
            found.setdefault(key, []).append(max(0.0, _ms(span) - below.get(span["span_id"], 0.0)))
    return found


def medians(found: Mapping[str, list[float]], total_ms: float) -> list[tuple[str, float]]:
    """Steps with their median milliseconds in the order of the way, the rest of `total_ms` first: what the client
    and gRPC between it and the gateway take."""
    steps = [(step, statistics.median(values)) for step, values in found.items()]
    steps.sort(key=lambda row: ORDER.index(row[0].split(":")[0]) if row[0].split(":")[0] in ORDER else len(ORDER))
    inside = sum(ms for _, ms in steps)
    return [("client and gRPC to the gateway", max(0.0, total_ms - inside)), *steps]


def _ms(span: Mapping[str, object]) -> float:
    end = span["end_unix_nanos"]
    assert isinstance(end, int)
    return (end - _start(span)) / 1e6
