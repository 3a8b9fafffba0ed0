"""model.pt2 made into program.json and weights.safetensors, without PyTorch and without a pickle."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import rouse
from rouse import exported
from rouse_testkit import models


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("mlp")
    models.write_exported_mlp(folder)
    return folder


def test_a_folder_with_a_program(mlp: Path) -> None:
    package = rouse.read_package(mlp)
    assert package.format == "TORCH_EXPORT"
    assert [file.path for file in package.files] == ["program.json", "weights.safetensors"]
    content = json.loads(package.files[0].source.read_text())
    assert [(t["name"], t["datatype"], t["shape"]) for t in content["inputs"]] == [("input", "FP32", [-1, 16])]
    assert str(Path(sys.prefix)) not in package.files[0].source.read_text()
    with safe_open(package.files[1].source, "pt") as weights:
        held = sorted(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    assert held == [4, 32, 32 * 4, 16 * 32]
    again = rouse.read_package(mlp)
    assert [file.source.read_bytes() for file in again.files] == [file.source.read_bytes() for file in package.files]


def test_neither_pytorch_nor_numpy_is_needed(mlp: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path; from rouse import exported; "
        "print(len(exported.convert(Path(sys.argv[1]), Path(sys.argv[2]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(mlp / "model.pt2"), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2\n"


def rewritten(archive: Path, **members: bytes | None) -> bytes:
    """The archive with some members, by their last part, replaced or left out."""
    made = io.BytesIO()
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(made, "w") as new:
        for info in old.infolist():
            content = members.get(info.filename.rpartition("/")[2].replace(".", "_"), old.read(info))
            if content is not None:
                new.writestr(info.filename, content)
    return made.getvalue()


def refusal(tmp_path: Path, data: bytes) -> str:
    (tmp_path / "model.pt2").write_bytes(data)
    with pytest.raises(rouse.PackageError) as caught:
        rouse.read_package(tmp_path)
    assert caught.value.reason == "BAD_ARTEFACT"
    return caught.value.message


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"model_json": None}, "want one program"),
        ({"model_json": b"{"}, "is not JSON"),
        ({"model_json": b"[]"}, "does not hold an object"),
        ({"model_json": b"{}"}, "its graph is damaged"),
        ({"weight_0": None}, "it lacks data/weights/weight_0"),
        ({"weight_0": b"abc"}, "is cut off"),
        ({"model_weights_config_json": b"{}"}, "list of weights is damaged"),
    ],
)
def test_a_damaged_archive_is_refused(mlp: Path, tmp_path: Path, members: dict[str, Any], says: str) -> None:
    assert says in refusal(tmp_path, rewritten(mlp / "model.pt2", **members))


def test_what_is_no_archive_is_refused(mlp: Path, tmp_path: Path) -> None:
    assert "is not an archive" in refusal(tmp_path, b"nothing")
    legacy = io.BytesIO()
    with zipfile.ZipFile(legacy, "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
    assert "before 2.8" in refusal(tmp_path, legacy.getvalue())


def test_a_pickled_weight_is_refused(mlp: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(mlp / "model.pt2") as archive:
        config = json.loads(archive.read("model/data/weights/model_weights_config.json"))
    config["config"]["0.weight"]["use_pickle"] = True
    data = rewritten(mlp / "model.pt2", model_weights_config_json=json.dumps(config).encode())
    assert "'0.weight' is no plain tensor but a pickle" in refusal(tmp_path, data)


class Number(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x, 3


def test_what_cannot_be_run_says_so(tmp_path: Path) -> None:
    models.write_exported(tmp_path, Number(), torch.zeros(2))
    with pytest.raises(rouse.PackageError, match="one of its results is no tensor"):
        rouse.read_package(tmp_path)


@settings(deadline=None, max_examples=150)
@given(position=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_a_changed_byte_is_taken_or_refused(mlp: Path, position: float, byte: int) -> None:
    data = bytearray((mlp / "model.pt2").read_bytes())
    data[int(position * len(data))] = byte
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.pt2").write_bytes(data)
        with contextlib.suppress(rouse.PackageError):  # any other failure fails the test
            exported.convert(Path(folder) / "model.pt2", Path(folder))
