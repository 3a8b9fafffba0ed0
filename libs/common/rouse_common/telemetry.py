"""Tracing: one trace a request over every service, exported by OTLP or kept as JSON lines, or both.

Service names on spans: gateway, node-router, gpu-server, executor, scaler, … The names of the spans that
people look for: `queue` (waiting in node-router), `swap` (weights to the device), `execute` (the function).
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rouse_common import sampling

LOG = logging.getLogger(__name__)
TRACER = trace.get_tracer("rouse")
PROPAGATOR = TraceContextTextMapPropagator()
IDS = RandomIdGenerator()
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
# Version, trace id, span id and flags in hex, with dashes between.
TRACEPARENT_CHARS = 2 + 1 + 32 + 1 + 16 + 1 + 2

# Two files a process at most: when the first is full it replaces the second.
TRACE_FILE_BYTES = 8 << 20
EXPORT_DELAY_MS = 200
MAX_QUEUED_SPANS = 8192


class JsonLinesExporter(SpanExporter):
    """Keeps spans in `<folder>/<service>-<pid>.jsonl`, bounded; `rouse trace` reads them.

    Args:
        held: opens the file once and for all, for a process that loses its access to the folder. What is in the file
            is dropped where it is full, since nothing can be renamed then.
    """

    def __init__(self, folder: Path, service: str, *, held: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{service}-{os.getpid()}.jsonl"
        self._service = service
        self._failing = False
        self._lock = threading.Lock()
        self._held = self._path.open("a") if held else None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        lines = "".join(json.dumps(self._row(span)) + "\n" for span in spans)
        try:
            with self._lock:
                self._write(lines)
        except OSError as error:
            if not self._failing:
                LOG.warning("spans are lost, they cannot be written to %s: %s", self._path, error)
            self._failing = True
            return SpanExportResult.FAILURE
        self._failing = False
        return SpanExportResult.SUCCESS

    def _write(self, lines: str) -> None:
        if self._held is not None:
            if os.fstat(self._held.fileno()).st_size > TRACE_FILE_BYTES:
                self._held.truncate(0)
            self._held.write(lines)
            self._held.flush()
            return
        if self._path.exists() and self._path.stat().st_size > TRACE_FILE_BYTES:
            self._path.replace(self._path.with_suffix(".old.jsonl"))
        with self._path.open("a") as file:
            file.write(lines)

    def _row(self, span: ReadableSpan) -> dict[str, object]:
        context = span.get_span_context()
        assert context is not None
        failed = span.status.status_code is StatusCode.ERROR
        return {
            "trace_id": f"{context.trace_id:032x}",
            "span_id": f"{context.span_id:016x}",
            "parent_span_id": f"{span.parent.span_id:016x}" if span.parent else "",
            "name": span.name,
            "service": self._service,
            "start_unix_nanos": span.start_time,
            "end_unix_nanos": span.end_time,
            "attributes": {key: str(value) for key, value in (span.attributes or {}).items()},
            "error": (span.status.description or "error") if failed else "",
        }


def configure(
    service: str, *, otlp_endpoint: str = "", trace_dir: str = "", kept: JsonLinesExporter | None = None
) -> TracerProvider:
    """Sets the process's tracer up. With neither endpoint nor folder, trace ids still travel.

    Args:
        kept: stands for `trace_dir`, where its file was opened before.
    """
    provider = TracerProvider(sampling.REQUESTS, Resource.create({SERVICE_NAME: service}))
    exporters: list[SpanExporter] = []
    if kept is not None:
        exporters.append(kept)
    elif trace_dir:
        exporters.append(JsonLinesExporter(Path(trace_dir), service))
    if otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        exporters.append(OTLPSpanExporter(endpoint=otlp_endpoint, insecure=not otlp_endpoint.startswith("https")))
    for exporter in exporters:
        provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED_SPANS, schedule_delay_millis=EXPORT_DELAY_MS)
        )
    trace.set_tracer_provider(provider)
    return provider


class _Untraced(NonRecordingSpan):
    """A span that is not sampled: all that is ever asked of it is its traceparent."""

    @cached_property
    def traceparent(self) -> str:
        return _traceparent(self.get_span_context())


class span:  # noqa: N801 - it reads as the function that it stands for
    """A span around a block, child of the current one or of what `parent` holds; an exception marks it failed
    and goes on. Within a trace that is not sampled it is the span around it, and costs next to nothing."""

    __slots__ = ("_made", "_span", "_token")

    def __init__(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: otel_context.Context | None = None,
        **attributes: str | int | float | bool,
    ) -> None:
        self._span = trace.get_current_span(parent)
        self._made = parent is not None or _begins(self._span.get_span_context())
        if self._made:
            self._span = start(name, kind, parent, attributes)

    def __enter__(self) -> Span:
        if self._made:
            self._token = otel_context.attach(trace.set_span_in_context(self._span))
        return self._span

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        if self._made:
            otel_context.detach(self._token)
            if error is not None:
                fail(self._span, error)
            self._span.end()


def start(
    name: str, kind: SpanKind, parent: otel_context.Context | None, attributes: Mapping[str, str | int | float | bool]
) -> Span:
    """A span that the caller ends; in a trace that is not sampled, one that only carries the trace on."""
    around = trace.get_current_span(parent)
    context = around.get_span_context()
    return _make(name, kind, parent, attributes, context) if _begins(context) else around


def enter(
    name: str, kind: SpanKind, parent: otel_context.Context, attributes: Mapping[str, str | int | float | bool]
) -> Span:
    """As `start`, and makes it the current one of the running task, for good."""
    around = trace.get_current_span(parent)
    context = around.get_span_context()
    if not _begins(context):
        otel_context.attach(parent)
        return around
    made = _make(name, kind, parent, attributes, context)
    otel_context.attach(trace.set_span_in_context(made, parent))
    return made


def _make(
    name: str,
    kind: SpanKind,
    parent: otel_context.Context | None,
    attributes: Mapping[str, str | int | float | bool],
    around: SpanContext,
) -> Span:
    if not sampling.REQUESTS.drops(name, kind, asked=around.is_valid):
        return TRACER.start_span(name, parent, kind, attributes)
    trace_id = around.trace_id if around.is_valid else IDS.generate_trace_id()
    return _Untraced(SpanContext(trace_id, IDS.generate_span_id(), is_remote=False))


def _begins(around: SpanContext) -> bool:
    """Whether a span is to be made there: the trace is sampled, or there is none yet."""
    return not around.is_valid or bool(around.trace_flags & TraceFlags.SAMPLED)


def fail(current: Span, error: BaseException) -> None:
    """Marks a span failed."""
    current.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"[:300]))


def current_trace_id() -> str:
    """32 hex digits, or an empty string outside any trace."""
    current = trace.get_current_span()
    if isinstance(current, _Untraced):
        return current.traceparent[3:35]
    context = current.get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


def inject() -> list[tuple[str, str]]:
    """The current context as call metadata."""
    carrier: dict[str, str] = {}
    PROPAGATOR.inject(carrier)
    return list(carrier.items())


def traceparent() -> str:
    """The current context as W3C's traceparent; empty outside any trace."""
    current = trace.get_current_span()
    if isinstance(current, _Untraced):
        return current.traceparent
    context = current.get_span_context()
    return _traceparent(context) if context.is_valid else ""


def _traceparent(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def extract(metadata: Mapping[str, str]) -> otel_context.Context:
    """The context that a call's metadata carries."""
    carried = metadata.get(TRACEPARENT)
    if carried is None:
        return otel_context.Context()
    if TRACESTATE in metadata:
        return PROPAGATOR.extract({TRACEPARENT: carried, TRACESTATE: metadata[TRACESTATE]})
    return from_traceparent(carried)


def from_traceparent(value: str) -> otel_context.Context:
    """The context of a W3C traceparent; an empty one where that is none."""
    parts = value.split("-", 3) if len(value) == TRACEPARENT_CHARS else ()
    if len(parts) != 4 or parts[0] != "00":
        # Of a later version, or nothing of the kind.
        return PROPAGATOR.extract({TRACEPARENT: value}) if value else otel_context.Context()
    try:
        context = SpanContext(
            int(parts[1], 16), int(parts[2], 16), is_remote=True, trace_flags=TraceFlags(int(parts[3], 16))
        )
    except ValueError:
        return otel_context.Context()
    if not context.is_valid:
        return otel_context.Context()
    carried = NonRecordingSpan(context) if context.trace_flags & TraceFlags.SAMPLED else _Untraced(context)
    return trace.set_span_in_context(carried, otel_context.Context())
