from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import _TYPES
from safetensors.torch import save as save_safetensors

from rouse_runtime.weights import DTYPES, AddressTaken, SizeMismatch, WeightsError, WeightsRange, make_tensors
from rouse_testkit.artefacts import _lay_out

SIZE = 3 * mmap.PAGESIZE + 100


def image(tmp_path: Path, name: str = "image", fill: int = 7) -> Path:
    path = tmp_path / name
    path.write_bytes(bytes([fill]) * SIZE)
    return path


def test_attach_and_detach_keep_the_address_and_change_the_memory(tmp_path: Path) -> None:
    weights = WeightsRange(SIZE)
    address = weights.address
    weights.map_private(str(image(tmp_path)))
    tensor = weights.tensor(64, SIZE - 64, "U8", [SIZE - 64])
    pointer = tensor.data_ptr()
    assert tensor.unique().tolist() == [7]
    for fill in (1, 2):
        weights.detach()
        weights.attach(str(image(tmp_path, f"segment{fill}", fill)), SIZE)
        assert tensor.unique().tolist() == [fill]
        assert tensor.data_ptr() == pointer == address + 64
    assert weights.address == address
    del tensor
    weights.close()


@pytest.mark.parametrize(
    ("step", "number"),
    [("", 0), ("w.detach()", signal.SIGSEGV), ("w.detach(); w.attach(path, size)", 0)],
)
def test_detached_weights_fault_when_touched(tmp_path: Path, step: str, number: int) -> None:
    code = f"""
import ctypes
from rouse_runtime.weights import WeightsRange
path, size = {os.fspath(image(tmp_path))!r}, {SIZE}
w = WeightsRange(size)
w.map_private(path)
{step}
print(ctypes.string_at(w.address + 5000, 1)[0], flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -number
    assert done.stdout == ("" if number else "7\n")


def test_attached_weights_cannot_be_written(tmp_path: Path) -> None:
    path = image(tmp_path)
    code = f"""
import ctypes
from rouse_runtime.weights import WeightsRange
w = WeightsRange({SIZE})
w.attach({os.fspath(path)!r}, {SIZE})
ctypes.memset(w.address, 1, {SIZE})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV
    assert path.read_bytes() == bytes([7]) * SIZE


def test_writes_while_loading_are_private_and_noticed(tmp_path: Path) -> None:
    path = image(tmp_path)
    weights = WeightsRange(SIZE)
    weights.map_private(str(path))
    tensor = weights.tensor(0, SIZE, "U8", [SIZE])
    assert tensor.sum().item() == 7 * SIZE  # reading is not writing
    assert weights.written_bytes() == 0
    tensor[mmap.PAGESIZE] = 0
    assert weights.written_bytes() == mmap.PAGESIZE
    assert path.read_bytes() == bytes([7]) * SIZE


def test_sizes_are_checked(tmp_path: Path) -> None:
    weights = WeightsRange(SIZE)
    good = str(image(tmp_path))
    rounded = tmp_path / "rounded"
    rounded.write_bytes(bytes(weights.size_bytes))
    weights.attach(str(rounded), weights.size_bytes)
    for size in (SIZE - 1, SIZE + 1, 0, weights.size_bytes + mmap.PAGESIZE):
        with pytest.raises(SizeMismatch):
            weights.attach(good, size)
        (tmp_path / "bad").write_bytes(bytes(size))
        with pytest.raises(SizeMismatch):
            weights.attach(str(tmp_path / "bad"), SIZE)
        with pytest.raises(SizeMismatch):
            weights.map_private(str(tmp_path / "bad"))


def test_no_weights_reserve_nothing() -> None:
    weights = WeightsRange(0)
    assert (weights.address, weights.size_bytes, weights.written_bytes()) == (0, 0, 0)
    weights.close()


@pytest.mark.parametrize(
    ("offset", "size", "dtype", "shape", "text"),
    [
        (32, 4, "F32", [1], "not aligned"),
        (0, 4, "F32", [2], "needs 8 bytes, not 4"),
        (64, 4 * SIZE, "F32", [SIZE], "outside"),
        (0, 4, "F4", [1], "no dtype for safetensors' F4"),
    ],
)
def test_tensors_outside_of_the_image_are_refused(
    offset: int, size: int, dtype: str, shape: list[int], text: str
) -> None:
    with pytest.raises(WeightsError, match=text):
        WeightsRange(SIZE).tensor(offset, size, dtype, shape)


def test_every_dtype_that_safetensors_and_torch_share(tmp_path: Path) -> None:
    assert {name: getattr(torch, DTYPES[name]) for name in _TYPES} == _TYPES
    source = torch.arange(240, dtype=torch.uint8)
    made = {name: (source % 2 if name == "BOOL" else source).view(dtype).clone() for name, dtype in _TYPES.items()}
    made |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3)}
    path = tmp_path / "model.safetensors"
    path.write_bytes(save_safetensors(made))
    layout, content = _lay_out(tmp_path, [path])
    (tmp_path / "image").write_bytes(content)
    weights = WeightsRange(len(content))
    weights.map_private(str(tmp_path / "image"))
    tensors = make_tensors(weights, layout)["model.safetensors"]
    assert set(tensors) == set(made)
    storages = set()
    for name, tensor in tensors.items():
        want = made[name]
        assert (tensor.dtype, tensor.shape) == (want.dtype, want.shape)
        assert bytes(tensor.untyped_storage()) == bytes(want.untyped_storage())  # each its own, and only its own
        if tensor.numel():
            assert tensor.data_ptr() % 64 == 0
            storages.add(tensor.untyped_storage().data_ptr())
    assert len(storages) == len(made) - 1


BASE = 0x5000_2000_0000


def test_every_process_reserves_the_model_at_the_same_addresses(tmp_path: Path) -> None:
    code = f"""
from rouse_runtime.weights import WeightsRange
w = WeightsRange({SIZE}, {BASE})
w.map_private({os.fspath(image(tmp_path))!r})
print(hex(w.tensor(64, 8, "U8", [8]).data_ptr()))
"""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.strip() == hex(BASE + 64)


def test_addresses_that_are_taken_are_refused_and_what_lies_there_is_named(tmp_path: Path) -> None:
    there = WeightsRange(SIZE, BASE)
    with pytest.raises(AddressTaken, match=f"0x{BASE:x}-0x{BASE + there.size_bytes:x} cannot be reserved") as caught:
        WeightsRange(SIZE, BASE)
    assert f"anonymous memory at 0x{BASE:x}" in str(caught.value)
    there.attach(str(image(tmp_path)), SIZE)
    with pytest.raises(AddressTaken, match=str(tmp_path / "image")):
        WeightsRange(4 * SIZE, BASE - 2 * mmap.PAGESIZE)
    there.close()
    WeightsRange(SIZE, BASE).close()


@pytest.mark.parametrize("base", [0, BASE + 64, -mmap.PAGESIZE])
def test_addresses_that_cannot_be_are_refused(base: int) -> None:
    with pytest.raises(WeightsError, match="which is no page"):
        WeightsRange(SIZE, base)
