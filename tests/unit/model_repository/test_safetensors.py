"""The strict parser of safetensors headers, and the layout of images."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rouse_common.errors import InvalidArgument
from rouse_model_repository.inspection import weights
from rouse_model_repository.inspection.safetensors import (
    DTYPE_BITS,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    MAX_STRUCTURE,
    BadSafetensors,
    Tensor,
    header_bytes,
    parse,
)


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def read(header: Any, data_bytes: int) -> list[Tensor]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return parse(text, 8 + len(text) + data_bytes)


def test_a_good_header() -> None:
    tensors = read(
        {"__metadata__": {"format": "pt"}, "b": entry("F16", [2, 3], 8, 20), "a": entry("I64", [], 0, 8),
         "none": entry("F32", [0, 7], 20, 20), "first": entry("U8", [0], 0, 0)},
        20,
    )  # fmt: skip
    assert [(t.name, t.size_bytes) for t in tensors] == [("first", 0), ("a", 8), ("b", 12), ("none", 0)]
    assert tensors[2].offset_bytes - tensors[1].offset_bytes == 8


def test_an_empty_file_of_weights() -> None:
    assert read({}, 0) == []
    assert read(b"{}     ", 0) == []


def test_numbers_of_less_than_a_byte() -> None:
    assert read({"a": entry("F4", [3, 2], 0, 3)}, 3)[0].size_bytes == 3
    with pytest.raises(BadSafetensors, match="do not agree"):
        read({"a": entry("F4", [3], 0, 2)}, 2)


@pytest.mark.parametrize(
    ("header", "data_bytes", "why"),
    [
        (b"[]", 0, "begin with"),
        (b"", 0, "begin with"),
        (b" {}", 0, "begin with"),
        (b"{", 0, "not JSON"),
        (b"{}x", 0, "not JSON"),
        (b'{"a": \xff}', 0, "not JSON"),
        (b'{"a": NaN}', 0, "NaN"),
        (b'{"a": 1, "a": 2}', 0, "twice"),
        (b'{"a":' * 100_000, 0, "nested"),
        ({"__metadata__": {"a": 1}}, 0, "strings"),
        ({"__metadata__": []}, 0, "strings"),
        ({"a": 1}, 0, "object of dtype"),
        ({"a": {"dtype": "U8", "shape": []}}, 0, "object of dtype"),
        ({"a": entry("U8", [1], 0, 1) | {"more": 1}}, 1, "object of dtype"),
        ({"a": entry("F31", [], 0, 4)}, 4, "unknown dtype"),
        ({"a": entry("U8", [-1], 0, 1)}, 1, "shape"),
        ({"a": entry("U8", [1.0], 0, 1)}, 1, "shape"),
        ({"a": entry("U8", [True], 0, 1)}, 1, "shape"),
        ({"a": entry("U8", [1] * 65, 0, 1)}, 1, "shape"),
        ({"a": entry("U8", [1 << 62], 0, 1)}, 1, "shape"),
        ({"a": entry("U8", [1], 0, 1) | {"data_offsets": [0]}}, 1, "pair"),
        ({"a": entry("U8", [1], 0, 1) | {"data_offsets": [0, "1"]}}, 1, "pair"),
        ({"a": entry("U8", [1], 1, 0)}, 1, "do not agree"),
        ({"a": entry("F32", [2], 0, 4)}, 4, "do not agree"),
        ({"a": entry("F64", [1 << 61, 8], 0, 0)}, 0, "do not agree"),
        ({"a": entry("U8", [1], 1, 2)}, 2, "gap"),
        ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, 3, "overlaps"),
        ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 0, 2)}, 2, "overlaps"),
        ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 3, 5)}, 5, "gap"),
        ({"a": entry("U8", [2], 0, 2)}, 3, "end at byte"),
        ({"a": entry("U8", [2], 0, 2)}, 1, "end at byte"),
        ({"": entry("U8", [1], 0, 1)}, 1, "its name"),
        (b'{"\\ud800": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}', 1, "Unicode"),
        (b'{"a": ' + b"9" * 5000 + b"}", 0, "not JSON"),
    ],
)  # fmt: skip
def test_bad_headers(header: Any, data_bytes: int, why: str) -> None:
    with pytest.raises(BadSafetensors, match=why) as caught:
        read(header, data_bytes)
    str(caught.value).encode()


def test_a_small_header_cannot_become_large_in_memory() -> None:
    for part in (b"[],", b'{"":0},', b'"a":0,', b"0,"):
        header = b'{"a":[' + part * (MAX_STRUCTURE + 2)
        with pytest.raises(BadSafetensors, match="parts"):
            parse(header, LENGTH_BYTES + len(header))


def test_lengths() -> None:
    assert header_bytes(struct.pack("<Q", 10), 18) == 10
    for first, size in (
        (b"", 0), (b"1234567", 7), (struct.pack("<Q", 11), 18), (struct.pack("<Q", MAX_HEADER_BYTES + 1), 1 << 40),
        (b"\xff" * 8, 1 << 40),
    ):  # fmt: skip
        with pytest.raises(BadSafetensors):
            header_bytes(first, size)


NUMBERS = st.one_of(st.integers(-2, 40), st.integers(), st.floats(), st.booleans(), st.text(max_size=3))
ENTRIES = st.one_of(
    st.fixed_dictionaries(
        {"dtype": st.one_of(st.sampled_from([*DTYPE_BITS, "X"]), NUMBERS), "shape": st.lists(NUMBERS, max_size=4),
         "data_offsets": st.lists(NUMBERS, max_size=3)}
    ),
    NUMBERS,
    st.none(),
    st.lists(NUMBERS, max_size=2),
)  # fmt: skip


def holds(tensors: list[Tensor], start: int, file_bytes: int) -> None:
    """What everything after the parser relies on."""
    position = start
    for tensor in tensors:
        assert tensor.offset_bytes == position
        elements = 1
        for size in tensor.shape:
            assert size >= 0
            elements *= size
        assert elements * DTYPE_BITS[tensor.dtype] == tensor.size_bytes * 8
        position += tensor.size_bytes
    assert position == file_bytes


@given(st.dictionaries(st.text(max_size=4), ENTRIES, max_size=4), st.integers(0, 64))
def test_what_is_accepted_holds(header: dict[str, Any], data_bytes: int) -> None:
    text = json.dumps(header).encode()
    try:
        tensors = parse(text, 8 + len(text) + data_bytes)
    except BadSafetensors as error:
        str(error).encode()
        return
    holds(tensors, 8 + len(text), 8 + len(text) + data_bytes)


@given(st.binary(max_size=200), st.integers(0, 300))
@example(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 62)
def test_any_bytes_are_parsed_or_refused(header: bytes, file_bytes: int) -> None:
    try:
        tensors = parse(header, file_bytes)
    except BadSafetensors:
        return
    holds(tensors, 8 + len(header), file_bytes)


@given(st.data())
def test_what_is_written_well_is_accepted_in_any_order(data: st.DataObject) -> None:
    shapes = data.draw(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=6))
    header, position = {}, 0
    for number, shape in enumerate(shapes):
        dtype = data.draw(st.sampled_from(["U8", "F16", "F32", "I64"]))
        size = DTYPE_BITS[dtype] // 8
        for length in shape:
            size *= length
        header[f"t{number}"] = entry(dtype, shape, position, position + size)
        position += size
    shuffled = dict(data.draw(st.permutations(list(header.items()))))
    assert {t.name for t in read(shuffled, position)} == set(header)


# ---- Layout ------------------------------------------------------------------------------------


def tensor(name: str, size: int) -> Tensor:
    return Tensor(name, "U8", (size,), 100, size)


@given(st.dictionaries(st.text("ab/", min_size=1, max_size=3), st.lists(st.integers(0, 300), max_size=5), max_size=4))
def test_tensors_lie_aligned_and_apart_in_the_image(sizes: dict[str, list[int]]) -> None:
    files = {path: [tensor(f"{path}{n}", size) for n, size in enumerate(row)] for path, row in sizes.items()}
    layout = weights.lay_out(files, names_unique=False)
    assert [t.file for t in layout.tensors] == [path for path in sorted(sizes) for _ in sizes[path]]
    end = 0
    for placed in layout.tensors:
        assert placed.image_offset_bytes % weights.ALIGNMENT_BYTES == 0
        assert placed.image_offset_bytes >= end
        end = placed.image_offset_bytes + placed.size_bytes
    assert end <= layout.image_bytes < end + weights.ALIGNMENT_BYTES
    assert layout.image_bytes % weights.ALIGNMENT_BYTES == 0


def test_a_name_in_two_shards() -> None:
    files = {"a": [tensor("w", 1)], "b": [tensor("w", 1)]}
    assert len(weights.lay_out(files, names_unique=False).tensors) == 2
    with pytest.raises(InvalidArgument, match="stands in a and in b"):
        weights.lay_out(files, names_unique=True)
