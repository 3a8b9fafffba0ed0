"""Spans as JSON lines: complete, bounded, and one trace over a call's metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path

import pytest
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
    with telemetry.within(extract(carried)):
        assert telemetry.current_trace_id() == rows(folder)[0]["trace_id"]
    assert inject() == []


def test_in_a_trace_that_is_not_sampled_nothing_is_made(folder: Path) -> None:
    carried = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    with span("here", parent=telemetry.from_traceparent(carried)) as outer, span("there") as inner:
        assert not inner.is_recording()
        assert inner is outer
        assert telemetry.current_trace_id() in carried
        assert telemetry.traceparent() == carried
        assert inject() == [(telemetry.TRACEPARENT, carried)]
        assert not telemetry.current().is_recording()
    assert rows(folder) == []
    assert telemetry.current_trace_id() == ""


UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
SAMPLED = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_traces_do_not_mix(folder: Path) -> None:
    with span("a", parent=extract({telemetry.TRACEPARENT: UNSAMPLED})):
        with span("b", parent=extract({telemetry.TRACEPARENT: SAMPLED})) as inner:
            assert telemetry.current() is inner
            assert telemetry.current_trace_id() == SAMPLED[3:35]
            with telemetry.within(UNSAMPLED):
                assert telemetry.traceparent() == UNSAMPLED
                with span("c") as quiet:
                    assert not quiet.is_recording()
            assert telemetry.current_trace_id() == SAMPLED[3:35]
            with telemetry.within(extract({})):
                assert telemetry.traceparent() == ""
        assert telemetry.traceparent() == UNSAMPLED
    assert [row["name"] for row in rows(folder)] == ["b"]


def test_entered_traces_last_for_the_task(folder: Path) -> None:
    def task(first: str, second: str) -> str:
        for carried in (first, second):
            telemetry.enter("call", SpanKind.SERVER, extract({telemetry.TRACEPARENT: carried}), {}).end()
        return telemetry.current_trace_id()

    assert copy_context().run(task, UNSAMPLED, SAMPLED) == SAMPLED[3:35]
    assert copy_context().run(task, SAMPLED, UNSAMPLED) == UNSAMPLED[3:35]
    assert [row["trace_id"] for row in rows(folder)] == [SAMPLED[3:35]] * 2


@pytest.mark.parametrize(
    "metadata",
    [
        {"traceparent": UNSAMPLED, "tracestate": "a=b"},
        {"traceparent": UNSAMPLED[:-2] + "02"},
        {"traceparent": UNSAMPLED},
    ],
)
def test_whatever_else_an_unsampled_trace_says_nothing_is_made(metadata: dict[str, str], folder: Path) -> None:
    with span("here", parent=extract(metadata)):
        assert telemetry.current_trace_id() == UNSAMPLED[3:35]
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
    "value",
    [
        "",
        "00-zz-zz-00",
        "x" * 5000,
        "00-" + "z" * 32 + "-" + "0" * 16 + "-01",
        "00" + "-" * 53,
        "00-" + "0" * 32 + "-b7ad6b7169203331-00",
    ],
)
def test_metadata_that_is_no_trace_begins_a_new_one(value: str) -> None:
    with telemetry.within(extract({telemetry.TRACEPARENT: value})):
        assert telemetry.traceparent() == ""


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
