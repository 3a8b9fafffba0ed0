"""The log file read from its end and followed over its renaming; every line once, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_gateway.adapters import logs
from rouse_gateway.adapters.logs import Filter, Position, read_added, read_tail

TRACE = "0af7651916cd43dd8448eb211c80319c"
LINE = f"2026-11-20T12:00:00.123Z INFO    node-router      trace={TRACE} swapped in function=bert n=1"


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        (Filter(), True),
        (Filter(function="bert"), True),
        (Filter(function="ber"), False),
        (Filter(function="bert-2"), False),
        (Filter(function="b.rt"), False),
        (Filter(service="node-router"), True),
        (Filter(service="node"), False),
        (Filter(trace_id=TRACE), True),
        (Filter(trace_id="0af7"), False),
        (Filter("bert", "node-router", TRACE), True),
        (Filter("bert", "gateway"), False),
    ],
)
def test_a_filter_wants_whole_words_in_their_places(wanted: Filter, passes: bool) -> None:
    assert wanted.passes(LINE) is passes


def test_a_name_at_the_end_or_before_punctuation_is_whole() -> None:
    assert Filter(function="f").passes("t INFO s trace=- gone function=f")
    assert Filter(function="f").passes("t INFO s trace=- gone function=f: why")
    assert not Filter(function="f").passes("t INFO s trace=- gone myfunction=f")
    assert not Filter(function="f").passes("t INFO s trace=- gone function=f.g")


def test_lines_of_an_instance_are_its_own_whatever_it_says() -> None:
    line = "t INFO    executor         trace=- function=f instance=a1 stdout: function=g instance=b2"
    assert Filter(function="f", instance="a1").passes(line)
    assert Filter(instance="a1").passes(line)
    for wanted in (Filter(function="g"), Filter(instance="b2"), Filter(function="f", instance="b2")):
        assert not wanted.passes(line)
    of_it = "t WARNING coordinator      trace=- instance failed function=f instance=a1 reason=x"
    assert Filter(instance="a1").passes(of_it)
    assert not Filter(instance="a").passes(of_it)


@given(st.lists(st.text("abü ", max_size=9), max_size=40), st.integers(1, 50), st.integers(1, 64), st.data())
def test_the_tail_is_the_end_whatever_the_block_size_and_the_rotation(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], tail: int, block: int, data: st.DataObject
) -> None:
    lines = [f"{text}#{n}" for n, text in enumerate(texts)]
    cut = data.draw(st.integers(0, len(lines)))
    path = tmp_path_factory.mktemp("log") / "rouse.log"
    path.with_name("rouse.log.1").write_text("".join(f"{line}\n" for line in lines[:cut]))
    path.write_text("".join(f"{line}\n" for line in lines[cut:]) + "half a li")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "BLOCK", block)
        found, position = read_tail(path, Filter(), tail)
    assert found == lines[-tail:]
    assert position.offset == path.stat().st_size - len("half a li")


def test_followed_lines_come_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "rouse.log"
    found, position = read_tail(path, Filter(), 10)
    assert found == []
    path.write_text("one\ntw")
    lines, position = read_added(path, Filter(), position)
    lines, position = (lines, position) if lines else read_added(path, Filter(), position)
    assert lines == ["one"]
    assert read_added(path, Filter(), position) == ([], position)
    with path.open("a") as file:
        file.write("o\nthree\n")
    lines, position = read_added(path, Filter(), position)
    assert lines == ["two", "three"]


def test_following_goes_on_over_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "rouse.log"
    path.write_text("one\n")
    _, position = read_tail(path, Filter(), 10)
    with path.open("a") as file:
        file.write("two\n")
    path.rename(tmp_path / "rouse.log.1")
    path.write_text("three\n")
    seen: list[str] = []
    for _ in range(4):
        lines, position = read_added(path, Filter(), position)
        seen += lines
    assert seen == ["two", "three"]


def test_a_line_without_end_does_not_stop_following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BLOCK", 16)
    path = tmp_path / "rouse.log"
    path.write_bytes(b"x" * 40 + b"\nend\n")
    position = Position(path.stat().st_ino, 0)
    seen: list[str] = []
    for _ in range(6):
        lines, position = read_added(path, Filter(), position)
        seen += lines
    assert seen[-1] == "end"
