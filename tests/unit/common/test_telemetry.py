"""Spans as JSON lines: complete, bounded, and one trace over a call's metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.trace import SpanKind

from rouse_common import telemetry
from rouse_common.telemetry import JsonLinesExporter, extract, inject, span


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that the spans of this test are exported to at once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(JsonLinesExporter(tmp_path / "traces", "gateway")))
    monkeypatch.setattr(telemetry, "TRACER", provider.get_tracer("rouse"))
    yield tmp_path / "traces"
    provider.shutdown()


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


def test_a_span_is_kept_with_its_parent_its_attributes_and_its_failure(folder: Path) -> None:
    def work() -> None:
        with span("Infer", SpanKind.SERVER, function="f", n=2):
            with span("queue"):
                pass
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        work()
    queue, infer = rows(folder)
    assert (queue["name"], infer["name"], infer["service"]) == ("queue", "Infer", "gateway")
    assert queue["trace_id"] == infer["trace_id"]
    assert (queue["parent_span_id"], infer["parent_span_id"]) == (infer["span_id"], "")
    assert infer["attributes"] == {"function": "f", "n": "2"}
    assert (queue["error"], infer["error"]) == ("", "ValueError: bad")
    start, end = infer["start_unix_nanos"], infer["end_unix_nanos"]
    assert isinstance(start, int)
    assert isinstance(end, int)
    assert start <= end


def test_a_trace_travels_in_metadata(folder: Path) -> None:
    with span("here"):
        carried = dict(inject())
        assert telemetry.current_trace_id() in carried[telemetry.TRACEPARENT]
    assert telemetry.current_trace_id() == ""
    context = trace.get_current_span(extract(carried)).get_span_context()
    assert f"{context.trace_id:032x}" == rows(folder)[0]["trace_id"]
    assert inject() == []


def test_in_a_trace_that_is_not_sampled_nothing_is_made(folder: Path) -> None:
    carried = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    with span("here", parent=telemetry.from_traceparent(carried)) as outer, span("there") as inner:
        assert not inner.is_recording()
        assert inner is outer
        assert telemetry.current_trace_id() in carried
        assert telemetry.traceparent() == carried
    assert rows(folder) == []


def test_a_trace_that_is_sampled_is_carried_on(folder: Path) -> None:
    carried = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for metadata in ({telemetry.TRACEPARENT: carried}, {telemetry.TRACEPARENT: carried, "tracestate": "a=b"}):
        with span("here", parent=extract(metadata)), span("there"):
            assert telemetry.traceparent().endswith("-01")
    there, here = rows(folder)[:2]
    assert here["parent_span_id"] == "b7ad6b7169203331"
    assert there["parent_span_id"] == here["span_id"]
    assert {row["trace_id"] for row in rows(folder)} == {"0af7651916cd43dd8448eb211c80319c"}


@pytest.mark.parametrize(
    "value", ["", "00-zz-zz-00", "x" * 5000, "00-" + "z" * 32 + "-" + "0" * 16 + "-01", "00" + "-" * 53]
)
def test_metadata_that_is_no_trace_begins_a_new_one(value: str) -> None:
    assert not trace.get_current_span(extract({telemetry.TRACEPARENT: value})).get_span_context().is_valid


def test_its_files_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "TRACE_FILE_BYTES", 2000)
    for number in range(60):
        with span(f"s{number}"):
            pass
    own = f"gateway-{os.getpid()}"
    assert {path.name for path in folder.iterdir()} == {f"{own}.jsonl", f"{own}.old.jsonl"}
    assert all(path.stat().st_size < 3000 for path in folder.iterdir())
    assert "s59" in {row["name"] for row in rows(folder)}


def test_a_folder_that_is_gone_loses_spans_and_says_so_once(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = JsonLinesExporter(folder, "gateway")
    folder.rename(tmp_path / "elsewhere")
    assert exporter.export([]) is SpanExportResult.FAILURE
    assert exporter.export([]) is SpanExportResult.FAILURE
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    folder.mkdir()
    assert exporter.export([]) is SpanExportResult.SUCCESS
