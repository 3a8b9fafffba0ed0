"""Finding pickles."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rouse_model_repository.inspection import pickles


class Calling:
    """Unpickling it calls something."""

    def __reduce__(self) -> Any:
        return os.getcwd, ()


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name.replace("__", "/"), data)
    return buffer.getvalue()


def found(data: bytes) -> str:
    return pickles.by_content(io.BytesIO(data))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", [Calling(), OrderedDict(a=1), np.zeros(3)])
def test_pickles_of_every_protocol(value: Any, protocol: int) -> None:
    assert found(pickle.dumps(value, protocol))
    assert found(pickle.dumps(value, protocol) + b"and something after it")


@pytest.mark.parametrize("protocol", range(2, 6))
def test_harmless_pickles_of_newer_protocols(protocol: int) -> None:
    assert found(pickle.dumps([1, "a"], protocol))


@pytest.mark.parametrize("text", [b"cos\nsystem\n(S'true'\ntR.", b"(S'true'\nios\nsystem\n."])
def test_hand_made_pickles(text: bytes) -> None:
    assert found(text)


def test_what_torch_saves() -> None:
    data = archive(archive__data_pkl=b"x").replace(b"archive/data_pkl", b"archive/data.pkl")
    assert "archive/data.pkl" in found(data)
    # As torch wrote it before it wrote archives: a pickle of its magic number first.
    assert found(pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2))


def test_numpy_arrays() -> None:
    def saved(array: Any) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=True)
        return buffer.getvalue()

    plain, objects = saved(np.zeros((3, 4))), saved(np.array([{}, None], dtype=object))
    assert found(plain) == ""
    assert "Python objects" in found(objects)
    assert "Python objects" in found(saved(np.zeros(2, dtype=[("a", "f4"), ("b", object)])))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.array([{}], dtype=object))
    assert "Python objects" in found(buffer.getvalue())
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(3))
    assert found(buffer.getvalue()) == ""


@pytest.mark.parametrize(
    "data",
    [
        b"", b".", b"}.", b"N.", b"(.", b"I01\n.",
        b"import os\nimport sys\n\nprint(1)\n",
        b"import torch\nfrom torch import nn\nclass F:\n    pass\n",
        b"class F:\n    def load(self, context): ...\n",
        b"# comment\n", b"def f():\n    return 1\n", b"from x import y\n", b"cfg = 1\n", b"if True:\n    pass\n",
        json.dumps({"architectures": ["X"]}).encode(),
        b'name = "f"\n[[inputs]]\n', b"GIF89a", b"\x89PNG\r\n\x1a\n", bytes(1000),
        struct.pack("<Q", 0x0280) + b"{" + b" " * 1000,
        b"\x80", b"\x80\x02", b"\x80\x09.", b"\x93NUMPY",
    ],
)  # fmt: skip
def test_what_is_no_pickle(data: bytes) -> None:
    assert found(data) == ""


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("pytorch_model.bin", True), ("a/b/weights.PT", True), ("x.pth", True), ("x.ckpt", True), ("x.pickle", True),
        ("x.joblib", True), ("model.safetensors", False), ("x.npy", False), ("main.py", False), ("bin", False),
        ("a.bin/readme.md", False), ("vocab.txt", False), (".pt", True),
    ],
)  # fmt: skip
def test_names(name: str, refused: bool) -> None:
    assert bool(pickles.by_name(name)) == refused


def test_archives() -> None:
    assert found(archive(a__b=b"hello")) == ""
    assert found(archive(a=pickle.dumps({})).replace(b"a", b"a")) == ""
    assert "cannot be read" in found(b"PK\x03\x04 but nothing follows")
    assert "cannot be read" in found(archive(a=b"hello")[:-30])
    # An archive behind something else is found by its end.
    assert found(b"#!/bin/sh\n" + archive(x=b"").replace(b"x", b"x")) == ""
    nested = archive(deep__weights_pkl=b"").replace(b"deep/weights_pkl", b"deep/weights.pkl")
    assert "deep/weights.pkl" in found(b"#!/bin/sh\n" + nested)


def test_an_archive_with_a_huge_directory_is_not_read_into_memory() -> None:
    end = struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, 60_000, 60_000, 1 << 30, 0, 0)
    assert "too large" in found(b"PK\x03\x04" + bytes(100) + end)
    large = struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0, 0)
    assert "too large" in found(b"PK\x03\x04" + bytes(100) + large)


@given(st.binary(max_size=300))
@example(b"PK\x03\x04" + bytes(30) + b"PK\x05\x06" + bytes(18))
@example(b"(" * 200)
@example(b"I" + b"9" * 5000 + b"\n.")
@example(b"L" + b"9" * 9000 + b"L\n.")
@example(b"\x8a\xff" + bytes(255) + b".")
def test_any_bytes_have_an_answer(data: bytes) -> None:
    assert isinstance(found(data), str)


@given(
    st.binary(max_size=60), st.sampled_from([b"PK\x03\x04", b"\x93NUMPY", b"(", b"c", b"\x80\x04"]), st.integers(0, 400)
)
def test_bytes_that_begin_well_have_an_answer(data: bytes, start: bytes, cut: int) -> None:
    assert isinstance(found(start + data), str)
    assert isinstance(found(start + data + archive(a=data)[cut:]), str)
