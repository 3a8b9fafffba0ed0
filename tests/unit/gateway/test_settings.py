"""Trace and log settings: what they answer, and that they change what happens."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

from rouse_common import telemetry
from rouse_common.errors import InvalidArgument, RouseError, Unimplemented
from rouse_common.sampling import RequestSampler
from rouse_gateway.oip.settings import LogSettings, TraceSettings
from rouse_testkit.clock import ManualClock

DEFAULTS = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": ["1"],
    "trace_count": ["-1"],
    "log_frequency": ["0"],
    "trace_file": [""],
    "trace_mode": ["opentelemetry"],
}


def traced(sampler: RequestSampler, count: int, name: str = "ModelInfer", kind: SpanKind = SpanKind.SERVER) -> int:
    """How many of `count` requests are recorded, with what they start below them."""
    tracer = TracerProvider(sampler).get_tracer("test")
    recorded = 0
    for _ in range(count):
        with tracer.start_as_current_span(name, kind=kind) as span, tracer.start_as_current_span("queue") as below:
            assert span.is_recording() == below.is_recording()
            assert span.get_span_context().is_valid, "the id travels, whether it is recorded or not"
            recorded += span.is_recording()
    return recorded


def test_settings_change_which_requests_are_traced() -> None:
    sampler = RequestSampler()
    settings = TraceSettings(sampler)
    assert settings.read() == DEFAULTS
    assert traced(sampler, 10) == 10
    settings.update("", {"trace_level": ["OFF"]})
    assert (settings.read()["trace_level"], traced(sampler, 10)) == (["OFF"], 0)
    assert traced(sampler, 3, "ServerMetadata") == 3, "only inferences are meant"
    assert traced(sampler, 3, kind=SpanKind.INTERNAL) == 3
    settings.update("", {"trace_level": ["TIMESTAMPS"], "trace_rate": ["4"]})
    assert traced(sampler, 20) == 5
    settings.update("", {"trace_rate": ["1"], "trace_count": ["3"]})
    assert traced(sampler, 10) == 3
    assert settings.read()["trace_count"] == ["0"]
    assert settings.update("", {"trace_level": [], "trace_rate": [], "trace_count": []}) == DEFAULTS
    assert traced(sampler, 10) == 10


def test_no_more_are_traced_a_second_than_allowed_but_for_those_that_callers_trace() -> None:
    clock = ManualClock()
    sampler = RequestSampler(clock.monotonic)
    TraceSettings(sampler)
    sampler.limit(5.0)
    assert traced(sampler, 80) == 50, "ten seconds' worth in a burst"
    clock.advance(0.5)
    assert traced(sampler, 20) == 2
    clock.advance(60.0)
    assert traced(sampler, 80) == 50
    parent = telemetry.from_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    assert isinstance(parent, Context)
    tracer = TracerProvider(sampler).get_tracer("test")
    assert tracer.start_span("ModelInfer", parent, SpanKind.SERVER).is_recording()


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.05, 0.3, 20.0])), max_size=80), st.integers(1, 4))
def test_what_is_dropped_beforehand_is_what_would_not_be_sampled(steps: list[tuple[bool, float]], rate: int) -> None:
    clock = ManualClock()
    samplers = [RequestSampler(clock.monotonic), RequestSampler(clock.monotonic)]
    for sampler in samplers:
        TraceSettings(sampler).update("", {"trace_rate": [str(rate)], "trace_count": ["15"]})
        sampler.limit(5.0)
    asks = telemetry.from_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    assert isinstance(asks, Context)
    for asked, pause_s in steps:
        clock.advance(pause_s)
        parent = asks if asked else Context()

        def sampled(sampler: RequestSampler, parent: Context = parent) -> bool:
            return sampler.should_sample(parent, 1, "ModelInfer", SpanKind.SERVER).decision.is_sampled()

        plain, spared = samplers
        dropped = spared.drops("ModelInfer", SpanKind.SERVER, asked=asked)
        assert (not dropped and sampled(spared)) == sampled(plain)
        assert spared.settings == plain.settings


BAD_TRACE: list[tuple[str, dict[str, list[str]], type[RouseError]]] = [
    ("", {"trace_level": ["LOUD"]}, InvalidArgument),
    ("", {"trace_level": ["OFF", "TIMESTAMPS"]}, InvalidArgument),
    ("", {"trace_level": ["TENSORS"]}, Unimplemented),
    ("", {"trace_rate": ["0"]}, InvalidArgument),
    ("", {"trace_rate": ["1", "2"]}, InvalidArgument),
    ("", {"trace_rate": ["9" * 5000]}, InvalidArgument),
    ("", {"trace_count": ["-2"]}, InvalidArgument),
    ("", {"trace_count": ["some"]}, InvalidArgument),
    ("", {"trace_file": ["/tmp/x"]}, Unimplemented),
    ("", {"unheard": ["of"]}, InvalidArgument),
    ("f", {"trace_rate": ["2"]}, Unimplemented),
]


@pytest.mark.parametrize(("model", "given", "kind"), BAD_TRACE)
def test_a_bad_trace_setting_is_refused_and_changes_nothing(
    model: str, given: dict[str, list[str]], kind: type[RouseError]
) -> None:
    settings = TraceSettings(RequestSampler())
    with pytest.raises(kind):
        settings.update(model, {"trace_level": ["OFF"]} | given if not model else given)
    assert settings.read() == DEFAULTS


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.levels: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.levels.append(record.levelno)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """A logger that stands for the root, with one handler."""
    logger = logging.getLogger("stands-for-the-root")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(Lines())
    yield logger
    logger.handlers.clear()


def passing(root: logging.Logger) -> list[int]:
    lines = next(handler for handler in root.handlers if isinstance(handler, Lines))
    lines.levels.clear()
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        root.log(level, "a line")
    return lines.levels


def test_settings_change_which_lines_are_logged(root: logging.Logger) -> None:
    settings = LogSettings(root)
    assert settings.read() == {
        "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
        "log_format": "default",
    }  # fmt: skip
    assert passing(root) == [logging.INFO, logging.WARNING, logging.ERROR]
    settings.update({"log_verbose_level": 2})
    assert passing(root) == [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR]
    settings.update({"log_verbose_level": 0, "log_info": False})
    assert passing(root) == [logging.WARNING, logging.ERROR]
    settings.update({"log_warning": False, "log_error": False})
    assert passing(root) == []
    settings.update({"log_info": True, "log_format": "ISO8601"})
    assert passing(root) == [logging.INFO]
    settings.close()
    assert len(passing(root)) == 3


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"log_info": "yes"}, InvalidArgument),
        ({"log_verbose_level": True}, InvalidArgument),
        ({"log_verbose_level": -1}, InvalidArgument),
        ({"log_format": "xml"}, InvalidArgument),
        ({"log_file": "elsewhere"}, Unimplemented),
        ({"unheard": True}, InvalidArgument),
    ],
)
def test_a_bad_log_setting_is_refused_and_changes_nothing(
    root: logging.Logger, given: dict[str, bool | int | str], kind: type[RouseError]
) -> None:
    settings = LogSettings(root)
    before = settings.read()
    with pytest.raises(kind):
        settings.update({"log_warning": False} | given)
    assert settings.read() == before
