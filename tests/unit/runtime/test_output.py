from __future__ import annotations

import logging
import os
import re

from hypothesis import given
from hypothesis import strategies as st

from rouse_runtime.output import MAX_LINE_CHARS, InstanceFormatter, PrintedLines


def printed(*writes: str) -> list[str]:
    """The log lines that come of writing to a stand-in for sys.stdout."""
    reader, writer = os.pipe()
    stream = PrintedLines(InstanceFormatter("f", "i1"), "stdout", writer)
    for text in writes:
        stream.write(text)
    stream.finish()
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        return file.read().splitlines()


def messages(lines: list[str]) -> list[str]:
    pattern = re.compile(r"\S+Z INFO +executor +trace=- function=f instance=i1 stdout: (.*)")
    matches = [pattern.fullmatch(line) for line in lines]
    assert all(matches)
    return [match[1] for match in matches if match]


def test_lines_are_whole_whatever_the_writes() -> None:
    assert messages(printed("a", "b\nc", "\n\n", "d")) == ["ab", "c", "d"]


def test_a_progress_bar_leaves_its_last_state() -> None:
    assert messages(printed("1%\r50%\r100%\n")) == ["100%"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]) | st.just("\n"), max_size=20)))
def test_no_text_is_lost(writes: list[str]) -> None:
    want = [line for line in "".join(writes).split("\n") if line.strip()]
    assert messages(printed(*writes)) == want


def test_endless_lines_are_cut_into_bounded_ones() -> None:
    lines = messages(printed("x" * 9_000))
    assert all(len(line) < MAX_LINE_CHARS + 100 for line in lines)


def test_log_lines_name_function_and_instance() -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 0, "two\nlines %s", ("100%",), None)
    line = InstanceFormatter("f", "i1").format(record)
    assert line.endswith("trace=- function=f instance=i1 two\\nlines 100%")
    assert "\n" not in line
