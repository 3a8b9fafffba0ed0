"""The mesh's log: every line once, in one form, bounded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rouse_embedded.logs import FORMATTED, MAX_LINE_BYTES, Line, LogSink

OURS = "2026-11-20T12:00:00.123Z WARNING gateway          trace=- waiting for nats"


def test_a_line_in_our_form_is_kept_as_it_is(tmp_path: Path) -> None:
    sink = LogSink(tmp_path)
    assert sink.write("gateway", "INFO", OURS) == Line("gateway", "WARNING", "waiting for nats")
    sink.close()
    assert sink.path.read_text() == OURS + "\n"


def test_another_line_gets_time_level_and_process(tmp_path: Path) -> None:
    sink = LogSink(tmp_path)
    assert sink.write("postgres", "INFO", "LOG: ready") == Line("postgres", "INFO", "LOG: ready")
    sink.close()
    found = FORMATTED.fullmatch(sink.path.read_text().rstrip("\n"))
    assert found is not None
    assert (found["level"], found["service"], found["text"]) == ("INFO", "postgres", "LOG: ready")


@pytest.mark.parametrize(
    ("raw", "level"),
    [
        ("2026-11-21 01:13:50.104 UTC [18295] LOG:  background worker exited with exit code 1", "INFO"),
        ("2026-11-21 01:13:50.104 UTC [18295] FATAL:  the database system is starting up", "ERROR"),
        ("[18172] [INF] Server is ready", "INFO"),
        ("[18172] [WRN] Maximum memory usage", "WARNING"),
        ("[18172] [ERR] authentication error", "ERROR"),
        ("Traceback (most recent call last):", "ERROR"),
    ],
)
def test_what_stores_complain_of_has_its_level(tmp_path: Path, raw: str, level: str) -> None:
    sink = LogSink(tmp_path)
    assert sink.write("nats", "INFO", raw) == Line("nats", level, raw)
    sink.close()


def test_a_line_is_cut_at_its_bound_and_stays_one(tmp_path: Path) -> None:
    sink = LogSink(tmp_path)
    sink.write("x", "INFO", "ä" * MAX_LINE_BYTES)
    sink.write("x", "INFO", "next")
    sink.close()
    first, second = sink.path.read_bytes().splitlines()
    assert len(first) <= MAX_LINE_BYTES
    assert second.endswith(b"next")


def test_files_are_rotated_and_bounded_and_no_line_is_lost_among_those_kept(tmp_path: Path) -> None:
    sink = LogSink(tmp_path, file_bytes=1000, kept_files=2)
    for number in range(100):
        sink.write("x", "INFO", f"line {number}")
    sink.close()
    files = [tmp_path / name for name in ("rouse.log.2", "rouse.log.1", "rouse.log")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(path.stat().st_size <= 1000 for path in files)
    numbers = [int(n) for path in files for n in re.findall(r"line (\d+)", path.read_text())]
    assert numbers == list(range(numbers[0], 100))


def test_a_log_is_continued(tmp_path: Path) -> None:
    for text in ("first", "second"):
        sink = LogSink(tmp_path)
        sink.write("x", "INFO", text)
        sink.close()
    assert [line.split()[-1] for line in sink.path.read_text().splitlines()] == ["first", "second"]
