"""Frames are the same however the bytes arrive, and bytes that are none end the connection, not the process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common.link.frames import (
    BUFFER_BYTES,
    HEADER,
    SMALL_BYTES,
    Decoder,
    Frame,
    Kind,
    ProtocolError,
    call_head,
    encode,
    read_call_head,
)

MAX_BYTES = 1 << 20
SIZES = st.one_of(st.integers(0, 200), st.integers(SMALL_BYTES - 40, SMALL_BYTES + 40), st.integers(0, 400_000))
FRAMES = st.lists(
    st.tuples(st.sampled_from(list(Kind)), st.integers(0, 2**64 - 1), st.binary(max_size=60), SIZES), max_size=6
)


def feed(decoder: Decoder, data: bytes, cuts: list[int]) -> list[Frame]:
    """What comes out when the bytes arrive in pieces of the given sizes."""
    frames: list[Frame] = []
    offset = turn = 0
    while offset < len(data):
        space = decoder.space()
        assert len(space) > 0
        count = min(len(space), len(data) - offset, cuts[turn % len(cuts)])
        space[:count] = data[offset : offset + count]
        frames += decoder.received(count)
        offset, turn = offset + count, turn + 1
    return frames


@given(FRAMES, st.lists(st.integers(1, 300_000), min_size=1, max_size=5))
def test_frames_come_out_as_they_went_in(frames: list[tuple[Kind, int, bytes, int]], cuts: list[int]) -> None:
    data = b""
    for kind, call, head, size in frames:
        data += encode(kind, call, head, size) + bytes([size % 251]) * size
    decoder = Decoder(MAX_BYTES)
    got = feed(decoder, data, [max(cut, len(data) // 2000 + 1) for cut in cuts])
    assert [(f.kind, f.call, f.head, len(f.body)) for f in got] == frames
    assert all(bytes(f.body) == bytes([len(f.body) % 251]) * len(f.body) for f in got)
    assert not decoder.waiting


@given(st.binary(max_size=4000), st.integers(1, 4000))
def test_garbage_is_a_protocol_error_or_waits_for_more(data: bytes, cut: int) -> None:
    try:
        frames = feed(Decoder(MAX_BYTES), data, [cut])
    except ProtocolError:
        return
    assert sum(HEADER.size + len(f.head) + len(f.body) for f in frames) <= len(data)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (HEADER.pack(MAX_BYTES + 1, Kind.CALL, 0, 1), "at most"),
        (HEADER.pack(10, 77, 0, 1), "kind 77"),
        (HEADER.pack(10, Kind.CALL, 11, 1), "a head of 11"),
        (HEADER.pack(5000, Kind.CALL, 5000, 1), "a head of 5000"),
    ],
)
def test_lengths_are_not_believed(header: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        feed(Decoder(MAX_BYTES), header, [len(header)])


def test_a_large_frame_that_the_buffer_holds_whole_comes_out_with_what_follows() -> None:
    size = SMALL_BYTES + 1
    data = encode(Kind.MESSAGE, 1, b"", size) + b"x" * size + encode(Kind.END, 1)
    assert len(data) < BUFFER_BYTES
    assert [f.kind for f in feed(Decoder(MAX_BYTES), data, [len(data)])] == [Kind.MESSAGE, Kind.END]


@given(st.binary(max_size=255), st.floats(1e-6, 1e6), st.text("0123456789abcdef-", max_size=60))
def test_the_head_of_a_call_survives(method: bytes, timeout_s: float, traceparent: str) -> None:
    name, timeout, parent = read_call_head(call_head(method, timeout_s, traceparent))
    assert (name, parent) == (method, traceparent)
    assert timeout == pytest.approx(timeout_s, abs=2e-6)


@given(st.binary(max_size=300))
def test_any_head_is_read_or_refused(head: bytes) -> None:
    try:
        read_call_head(head)
    except ProtocolError:
        return
