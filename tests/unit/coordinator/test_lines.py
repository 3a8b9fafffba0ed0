from __future__ import annotations

import asyncio
import re

from hypothesis import given
from hypothesis import strategies as st

from rouse_coordinator.lines import CHUNK_BYTES, KEPT_LINES, MAX_LINE_BYTES, LinePump
from rouse_testkit.clock import ManualClock

OURS = "2026-11-21T00:00:00.000Z INFO    executor         trace=- function=f instance=i1 "


class Pipe:
    """Gives chunks as they were written."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = list(chunks)

    async def read(self, n: int) -> bytes:
        assert n == CHUNK_BYTES
        return self._chunks.pop(0) if self._chunks else b""


def pumped(*chunks: bytes) -> tuple[list[str], list[str]]:
    written: list[str] = []
    pump = LinePump("f", "i1", ManualClock(), written.append)
    asyncio.run(pump.run(Pipe(*chunks)))
    return written, pump.last_lines


def test_lines_of_the_instance_pass_unchanged() -> None:
    written, kept = pumped(f"{OURS}hel".encode(), b"lo\n")
    assert written == [f"{OURS}hello"]
    assert kept == ["hello"]


def test_other_lines_get_time_function_and_instance() -> None:
    forged = OURS.replace("function=f", "function=g") + "x"
    written, kept = pumped(b"plain\n", f"{forged}\n".encode(), b"no end")
    assert kept == ["plain", forged, "no end"]
    assert all(re.match(r"\d{4}-\S+Z INFO +executor +trace=- function=f instance=i1 raw: ", line) for line in written)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=30))
def test_any_bytes_become_whole_bounded_lines(chunks: list[bytes]) -> None:
    written, kept = pumped(*chunks)
    shown = [line for line in b"".join(chunks).split(b"\n") if line.decode("utf-8", "backslashreplace").strip()]
    assert len(written) == len(shown)
    assert len(kept) == min(len(shown), KEPT_LINES)
    assert not any("\n" in line for line in written)


@given(st.integers(1, 5 * MAX_LINE_BYTES), st.integers(1000, CHUNK_BYTES))
def test_long_lines_are_cut_and_the_next_is_whole(length: int, chunk: int) -> None:
    data = b"x" * length + b"\nnext\n"
    written, kept = pumped(*(data[i : i + chunk] for i in range(0, len(data), chunk)))
    assert kept[-1] == "next"
    assert len(written) == 2
    assert all(len(line) < MAX_LINE_BYTES + 200 for line in written)
