"""One line an event, whatever it says."""

from __future__ import annotations

import logging
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider

from rouse_common.logs import LineFormatter
from rouse_embedded.logs import FORMATTED


def line(message: str, *arguments: object, failed: bool = False) -> str:
    error = None
    if failed:
        try:
            raise ValueError("first\nsecond")
        except ValueError:
            error = sys.exc_info()
    record = logging.LogRecord("rouse_x", logging.WARNING, __file__, 1, message, arguments, error)
    record.created, record.msecs = 1_800_000_000.25, 250.0
    return LineFormatter("gateway").format(record)


def test_a_line_says_when_how_bad_who_and_what() -> None:
    assert line("held function=%s", "f") == "2027-01-15T08:00:00.250Z WARNING gateway          trace=- held function=f"


def test_a_line_names_the_trace_that_it_belongs_to() -> None:
    with TracerProvider().get_tracer("x").start_as_current_span("s") as span:
        assert f"trace={span.get_span_context().trace_id:032x} held" in line("held")


@pytest.mark.parametrize("message", ["a\nb", "a\r\nb", "a\rb", "\n"])
def test_what_is_said_stays_on_one_line(message: str) -> None:
    assert len(line(message).splitlines()) == 1


def test_a_traceback_stays_on_the_line() -> None:
    text = line("failed", failed=True)
    assert len(text.splitlines()) == 1
    assert "ValueError: first\\nsecond" in text


def test_the_supervisor_reads_what_services_write() -> None:
    found = FORMATTED.match(line("held function=f"))
    assert found is not None
    assert (found["level"], found["service"], found["text"]) == ("WARNING", "gateway", "held function=f")
