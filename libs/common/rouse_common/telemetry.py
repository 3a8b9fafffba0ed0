"""Tracing: one trace a request over every service, exported by OTLP or kept as JSON lines, or both.

Service names on spans: gateway, node-router, gpu-server, executor, scaler, … The names of the spans that
people look for: `queue` (waiting in node-router), `swap` (weights to the device), `execute` (the function).
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rouse_common import sampling

LOG = logging.getLogger(__name__)
TRACER = trace.get_tracer("rouse")
PROPAGATOR = TraceContextTextMapPropagator()
NO_SPAN = trace.INVALID_SPAN
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
# A traceparent of a trace that is not sampled: version, trace id, span id, flags.
UNSAMPLED = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-00")
# Where a trace comes from that a call belongs to: the context that holds its span, or the traceparent of one that is
# not sampled. All that is ever asked of that is to go on to the next service, so nothing else is made of it.
Parent: TypeAlias = otel_context.Context | str
# The traceparent of the trace that the running task is in, where that is not sampled.
_UNSAMPLED: ContextVar[str] = ContextVar("rouse_unsampled", default="")

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


class span:  # noqa: N801 - it reads as the function that it stands for
    """A span around a block, child of the current one or of what `parent` holds; an exception marks it failed
    and goes on. Within a trace that is not sampled there is none, and it costs next to nothing."""

    __slots__ = ("_before", "_began", "_token")

    def __init__(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: Parent | None = None,
        **attributes: str | int | float | bool,
    ) -> None:
        # What it changes; None: nothing.
        self._began = None if parent is None and _UNSAMPLED.get() else _begin(name, kind, parent, attributes)

    def __enter__(self) -> Span:
        if self._began is None:
            return NO_SPAN
        self._before = _UNSAMPLED.get()
        if isinstance(self._began, str):
            _UNSAMPLED.set(self._began)
            return NO_SPAN
        _UNSAMPLED.set("")
        self._token = otel_context.attach(trace.set_span_in_context(self._began))
        return self._began

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        if self._began is None:
            return
        _UNSAMPLED.set(self._before)
        if isinstance(self._began, str):
            return
        otel_context.detach(self._token)
        if error is not None:
            fail(self._began, error)
        self._began.end()


def enter(name: str, kind: SpanKind, parent: Parent, attributes: Mapping[str, str | int | float | bool]) -> Span:
    """A span that the caller ends, and that is the current one of the running task, for good."""
    began = _begin(name, kind, parent, attributes)
    if isinstance(began, str):
        _UNSAMPLED.set(began)
        return NO_SPAN
    _UNSAMPLED.set("")
    otel_context.attach(trace.set_span_in_context(began))
    return began


@contextmanager
def within(parent: Parent) -> Iterator[None]:
    """A block in the trace that came with a message, or in none."""
    before = _UNSAMPLED.get()
    _UNSAMPLED.set(parent if isinstance(parent, str) else "")
    token = None if isinstance(parent, str) else otel_context.attach(parent)
    try:
        yield
    finally:
        _UNSAMPLED.set(before)
        if token is not None:
            otel_context.detach(token)


def _begin(
    name: str, kind: SpanKind, parent: Parent | None, attributes: Mapping[str, str | int | float | bool]
) -> Span | str:
    """A span; or the traceparent of a trace that is not sampled."""
    if isinstance(parent, str):
        return parent
    around = trace.get_current_span(parent).get_span_context()
    if not sampling.REQUESTS.drops(name, kind, asked=around.is_valid):
        return TRACER.start_span(name, parent, kind, attributes)
    trace_id = f"{around.trace_id:032x}" if around.is_valid else os.urandom(16).hex()
    return f"00-{trace_id}-{os.urandom(8).hex()}-00"


def current() -> Span:
    """The span that the running task is in; one that records nothing where there is none."""
    return NO_SPAN if _UNSAMPLED.get() else trace.get_current_span()


def fail(current: Span, error: BaseException) -> None:
    """Marks a span failed."""
    current.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"[:300]))


def current_trace_id() -> str:
    """32 hex digits, or an empty string outside any trace."""
    return traceparent()[3:35]


def inject() -> list[tuple[str, str]]:
    """The current context as call metadata."""
    if unsampled := _UNSAMPLED.get():
        return [(TRACEPARENT, unsampled)]
    carrier: dict[str, str] = {}
    PROPAGATOR.inject(carrier)
    return list(carrier.items())


def traceparent() -> str:
    """The current context as W3C's traceparent; empty outside any trace."""
    if unsampled := _UNSAMPLED.get():
        return unsampled
    context = trace.get_current_span().get_span_context()
    return _traceparent(context) if context.is_valid else ""


def _traceparent(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def extract(metadata: Mapping[str, str]) -> Parent:
    """The trace that a call's metadata carries."""
    carried = metadata.get(TRACEPARENT, "")
    if TRACESTATE not in metadata:
        return from_traceparent(carried)
    return _parent(PROPAGATOR.extract({TRACEPARENT: carried, TRACESTATE: metadata[TRACESTATE]}))


def from_traceparent(value: str) -> Parent:
    """The trace of a W3C traceparent; an empty context where that is none."""
    if not value:
        return otel_context.Context()
    if UNSAMPLED.fullmatch(value):
        return value
    return _parent(PROPAGATOR.extract({TRACEPARENT: value}))


def _parent(context: otel_context.Context) -> Parent:
    """The context, or the traceparent in it where that is not sampled."""
    carried = trace.get_current_span(context).get_span_context()
    sampled = bool(carried.trace_flags & TraceFlags.SAMPLED)
    return context if sampled or not carried.is_valid else _traceparent(carried)
