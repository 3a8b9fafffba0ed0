"""Spans found in the files of many processes, and when a trace is whole."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rouse_common.clock import SystemClock
from rouse_common.errors import FailedPrecondition, InvalidArgument, NotFound
from rouse_contracts.functions import Span
from rouse_gateway.adapters.traces import Traces, collect, is_whole
from rouse_testkit.clock import ManualClock

TRACE, OTHER = "ab" * 16, "cd" * 16


def row(span: str, parent: str = "", trace: str = TRACE, service: str = "gateway", start: int = 1) -> str:
    values = {
        "trace_id": trace, "span_id": span, "parent_span_id": parent, "name": "n", "service": service,
        "start_unix_nanos": start, "end_unix_nanos": start + 5, "attributes": {"k": "v"}, "error": "",
    }  # fmt: skip
    return json.dumps(values) + "\n"


def test_spans_of_all_files_come_in_the_order_of_their_start(tmp_path: Path) -> None:
    (tmp_path / "gateway-1.jsonl").write_text(row("a", start=10) + row("x", trace=OTHER) + row("b", "a", start=12))
    (tmp_path / "executor-2.jsonl").write_text(row("c", "b", service="executor", start=11))
    (tmp_path / "executor-2.old.jsonl").write_text(row("c", "b", service="executor", start=11))
    (tmp_path / "empty-3.jsonl").touch()
    (tmp_path / "other.txt").write_text(row("z"))
    assert [s.span_id for s in collect(tmp_path, TRACE)] == ["a", "c", "b"]


def test_damaged_and_unfinished_lines_are_passed_over(tmp_path: Path) -> None:
    link = row("l").replace('"k"', f'"{TRACE}"').replace(f'"trace_id": "{TRACE}"', f'"trace_id": "{OTHER}"')
    (tmp_path / "a.jsonl").write_text(
        f'{{"trace_id": "{TRACE}", "span\n' + f'["{TRACE}"]\n' + link + row("good") + row("half").rstrip("}\n")
    )
    assert [s.span_id for s in collect(tmp_path, TRACE)] == ["good"]


def test_a_trace_is_whole_when_parents_are_there_and_the_top_is_the_gateway_s() -> None:
    def span(span_id: str, parent: str, service: str = "node-router") -> Span:
        return Span(span_id=span_id, parent_span_id=parent, service=service)

    assert not is_whole([])
    assert not is_whole([span("b", "a")])
    assert is_whole([span("b", "a"), span("a", "", "gateway")])
    assert is_whole([span("b", "a"), span("a", "made by the client", "gateway")])
    assert not is_whole([span("c", "b"), span("a", "", "gateway")])


async def test_spans_that_are_still_being_written_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "node.jsonl").write_text(row("b", "a", service="node-router"))
    reading = asyncio.ensure_future(Traces(str(tmp_path), SystemClock()).read(TRACE.upper(), 10))
    await asyncio.sleep(0)
    (tmp_path / "gateway.jsonl").write_text(row("a"))
    assert {span.span_id for span in await reading} == {"a", "b"}


async def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    clock = ManualClock()
    with pytest.raises(FailedPrecondition, match="OTLP"):
        await Traces("", clock).read(TRACE, 1)
    for bad in ("", "xyz", TRACE + "0", f"../{TRACE}"):
        with pytest.raises(InvalidArgument):
            await Traces(str(tmp_path), clock).read(bad, 1)
    with pytest.raises(NotFound):
        await Traces(str(tmp_path), clock).read(TRACE, 0)
