"""What a folder may hold, and what rouse.toml may say."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rouse
from rouse.manifest import parse
from rouse.package import MAX_FILES, PICKLED_SUFFIXES, hash_files
from rouse.toml_lines import Lines
from rouse_model_repository.inspection import pickles

MINIMAL = """
handler = "function:Function"
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1]
"""
CONFIG = '{"architectures": ["BertModel"]}'


def refused(folder: Path) -> rouse.PackageError:
    with pytest.raises(rouse.PackageError) as caught:
        rouse.read_package(folder)
    assert caught.value.hint
    return caught.value


def test_python_package(folder: Path) -> None:
    package = rouse.read_package(folder)
    assert (package.default_name, package.format) == ("digits", "PYTHON")
    assert package.size_bytes == sum(file.size_bytes for file in package.files)


def test_name_comes_from_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "my-model"
    root.mkdir()
    (root / "rouse.toml").write_text(MINIMAL)
    (root / "function.py").write_text("")
    assert rouse.read_package(root).default_name == "my-model"


def test_hugging_face_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert "not JSON" in refused(tmp_path).message
    (tmp_path / "config.json").write_text("{}")
    assert "architectures" in refused(tmp_path).message
    (tmp_path / "config.json").write_text(CONFIG)
    assert "no *.safetensors" in refused(tmp_path).message
    (tmp_path / "model.safetensors").write_bytes(b"0")
    assert rouse.read_package(tmp_path).format == "HUGGING_FACE"
    (tmp_path / "rouse.toml").write_text('name = "resnet"\n[scaling]\nmax_instances = 2\n')
    package = rouse.read_package(tmp_path)
    assert (package.default_name, package.format) == ("resnet", "HUGGING_FACE")


def test_linked_files_are_followed_as_in_the_hub_cache(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    (blobs / "aa").write_text(CONFIG)
    (blobs / "bb").write_bytes(b"weights")
    (snapshot / "config.json").symlink_to(blobs / "aa")
    (snapshot / "model.safetensors").symlink_to(blobs / "bb")
    package = rouse.read_package(snapshot)
    assert [f.size_bytes for f in package.files] == [len(CONFIG), 7]


def test_ignored_files(folder: Path) -> None:
    before = rouse.read_package(folder)
    for name in (".git/config", "__pycache__/function.cpython-311.pyc", ".hidden", "parts/.DS_Store", "old.pyc"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    assert rouse.read_package(folder) == before


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "a/b.PTH", "last.ckpt", "m.pkl", "weights.dat"])
def test_pickles_are_refused_with_advice(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"\x80\x04")
    error = refused(folder)
    assert error.reason == "PICKLE_REFUSED"
    assert name in error.message
    assert "safetensors" in error.hint


def test_pickles_are_those_of_the_mesh() -> None:
    assert PICKLED_SUFFIXES == pickles.EXTENSIONS


def test_odd_folders(tmp_path: Path, folder: Path) -> None:
    assert refused(tmp_path / "nowhere").reason == "BAD_ARTEFACT"
    assert "not a folder" in refused(folder / "rouse.toml").message
    (tmp_path / "empty").mkdir()
    assert "no files" in refused(tmp_path / "empty").message
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "readme").write_text("hello")
    assert "neither" in refused(tmp_path / "other").message


def test_odd_files(folder: Path) -> None:
    odd = folder / "a\nb"
    odd.write_text("")
    assert refused(folder).reason == "BAD_PATH"
    odd.unlink()
    link = folder / "linked"
    link.symlink_to(folder / "parts")
    assert refused(folder).reason == "BAD_PATH"
    link.unlink()
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    assert "regular file" in refused(folder).message
    pipe.unlink()
    (folder / "broken").symlink_to(folder / "nothing")
    assert "cannot be read" in refused(folder).message


def test_too_many_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_FILES == 10_000, "the contract's bound"
    monkeypatch.setattr("rouse.package.MAX_FILES", 3)
    assert "more than 3 files" in refused(folder).message


def test_missing_handler_file_and_signature(folder: Path) -> None:
    (folder / "function.py").unlink()
    assert "function.py" in refused(folder).message
    (folder / "function").mkdir()
    (folder / "function" / "__init__.py").write_text("")
    rouse.read_package(folder)
    (folder / "rouse.toml").write_text('handler = "function:Function"\n')
    assert "must declare its inputs" in refused(folder).message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = ", "not TOML"),
        ('nmae = "x"', "did you mean 'name'?"),
        ("[scaling]\nidle_timeout = 3", "did you mean 'idle_timeout_s'?"),
        ('handler = "function"', "module:Class"),
        ("queue_capacity = 0", "1 to"),
        ("queue_capacity = true", "1 to"),
        ("[scaling]\nmin_instances = 3", "above"),
        ("[scaling]\nidle_timeout_s = nan", "idle_timeout_s"),
        ("[objective]\npercentile = 0.9", "lacks 'latency_ms'"),
        ("[objective]\nlatency_ms = 10\npercentile = 98", "0.001 to 0.9999"),
        ('[resources]\nworking_memory_bytes = "lots"', "64MiB"),
        ("[resources]\nworking_memory_bytes = -1", "64MiB"),
        ("[options]\na = [1]", "options.a"),
        ("inputs = 3", "[[inputs]]"),
        ('[[inputs]]\nname = "x"\ndatatype = "FLOAT"\nshape = []', "'FLOAT'"),
        ('[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [-2]', "shape"),
        ('[[inputs]]\nname = "x"\nshape = [1]', "lacks 'datatype'"),
        (('[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [1]\n' * 2), "names 'x' twice"),
        ("scaling = 1", "table"),
        ("[batching]\nmax_delay_us = 5", "lacks 'max_batch_size'"),
        ("[batching]\nmax_batch_size = 0", "1 to 65536"),
        ("[batching]\nmax_batch_size = 65537", "1 to 65536"),
        ("[batching]\nmax_batch_size = 1\nmax_delay_us = 5", "without a max_batch_size of 2"),
        ("[batching]\nmax_batch_size = 2\nmax_delay_us = -1", "0 to 10000000"),
        ("[batching]\nmax_batch_size = 2\nmax_delay = 2", "did you mean 'max_delay_us'?"),
        ("decoupled = 1", "true or false"),
        ("decoupled = true\n[batching]\nmax_batch_size = 2", "one request at a time"),
        ('pinned = "yes"', "true or false"),
        ('execution = "gpu"', "want 'plain' or 'rouse'"),
        ("execution = 1", "want 'plain' or 'rouse'"),
        ('isolation = "none"', "want 'sharing' or 'isolated'"),
        ('tapes = "yes"', "true or false"),
        ('isolation = "isolated"', "in plain execution there is no executor"),
        ('execution = "plain"\ntapes = true', "in plain execution nothing is recorded"),
        ("shared = 0", "true or false"),
        ("[limits]\nmax_concurrent_requests = 0", "1 to 1000000"),
        ("[limits]\nmax_concurrency = 3", "did you mean 'max_concurrent_requests'?"),
        ("[environment]\nA = []", "environment.A"),
        ('[environment]\n"a-b" = "x"', "'environment.a-b' is no environment variable"),
        ('[environment]\nROUSE_TOKEN = "x"', "kept for the mesh"),
        ('[environment]\nA = "\\u0000"', "NUL"),
        ("[secrets]\nA = 3", "'secrets.A' must be a text"),
        ('[secrets]\nA = "no secret"', "'secrets.A' names no secret"),
        ('[secrets]\n1A = "x"', "'secrets.1A' is no environment variable"),
        ('[environment]\nA = "x"\n[secrets]\nA = "x"', "'secrets.A' is set twice"),
        ('[batching]\nmax_batch_size = 2\n[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [4]', "write -1 there"),
        ('[batching]\nmax_batch_size = 2\n[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = []', "write -1 there"),
    ],
)
def test_bad_manifest_names_the_key(text: str, says: str) -> None:
    with pytest.raises(rouse.PackageError) as caught:
        parse(text)
    assert caught.value.reason == "BAD_SPEC"
    assert says in caught.value.message


MANY_LINES = """# a comment = 1
name = "f"  # scaling = 3
description = \'\'\'
queue_capacity = 0
\'\'\'
options = { a = "x]", "b c" = [1,
  2] }

[[inputs]]
name = "x"
datatype = "FP32"
shape = [
  -1,
]
[[inputs]]
name = "z"
datatype = "FP32"
shape = [-1]
[ scaling ]
  max_instances = 2
resources.threads = 1
"""


def test_the_line_of_a_key() -> None:
    lines = Lines(MANY_LINES)
    want = {
        "name": 2, "description": 3, "queue_capacity": None, "options.a": 6, "options": 6, "inputs": 9,
        "inputs[0].name": 10, "inputs[0].shape": 12, "inputs[1].datatype": 17, "scaling": 19,
        "scaling.max_instances": 20, "scaling.min_instances": 19, "scaling.resources.threads": 21, "nothing": None,
    }  # fmt: skip
    assert {path: lines.of(path) for path in want} == want


@given(st.text(alphabet="ab.=[]{}\"'#\n ", max_size=40))
def test_the_line_of_a_key_in_any_text(text: str) -> None:
    line = Lines(text).of("a.b")
    assert line is None or 1 <= line <= text.count("\n") + 1


def test_an_error_names_its_line() -> None:
    with pytest.raises(rouse.PackageError, match=r"rouse\.toml, line 4: 'batching\.max_delay_us' is -1"):
        parse('name = "f"\n[batching]\nmax_batch_size = 4\nmax_delay_us = -1\n')
    with pytest.raises(rouse.PackageError, match=r"line 7: 'inputs\[0\]\.shape'"):
        parse('name = "f"\n[batching]\nmax_batch_size = 4\n[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [4]\n')


def test_bad_name() -> None:
    for name in ("", "a/b", "-a", "ä", "a" * 129):
        with pytest.raises(rouse.PackageError) as caught:
            parse(f'name = "{name}"')
        assert caught.value.reason == "BAD_NAME"


def test_full_manifest() -> None:
    manifest = parse(
        MINIMAL
        + "[scaling]\nmin_instances = 1\nmax_instances = 3\n[objective]\nlatency_ms = 50\n[resources]\nthreads = 2\n"
        'working_memory_bytes = "1.5KiB"\n[options]\na = "b"\nn = 3\nx = 0.5\nflag = true\n'
    )
    assert manifest.scaling == rouse.Scaling(1, 3, 300.0)
    assert manifest.objective == rouse.Objective(50, 0.98)
    assert manifest.resources == rouse.Resources(1536, 0, 2)
    assert manifest.options == {"a": "b", "n": "3", "x": "0.5", "flag": "true"}
    assert (manifest.batching, manifest.limits, manifest.environment) == (None, None, None)


def test_life_of_a_function_in_the_manifest() -> None:
    manifest = parse(
        "pinned = true\nshared = true\n" + MINIMAL + "[batching]\nmax_batch_size = 8\nmax_delay_us = 500\n"
        '[limits]\nmax_concurrent_requests = 9\n[environment]\nA = 1\nB = true\n[secrets]\nTOKEN = "hub-token"\n'
    )
    assert (manifest.pinned, manifest.shared, manifest.decoupled) == (True, True, False)
    assert manifest.batching == rouse.Batching(8, 500)
    assert manifest.limits == rouse.Limits(9)
    assert manifest.environment == {"A": "1", "B": "true"}
    assert manifest.secrets == {"TOKEN": "hub-token"}
    assert (manifest.execution, manifest.isolation, manifest.tapes) == ("", "", None)


def test_execution_in_the_manifest() -> None:
    manifest = parse('execution = "rouse"\nisolation = "isolated"\ntapes = false\n' + MINIMAL)
    assert (manifest.execution, manifest.isolation, manifest.tapes) == ("rouse", "isolated", False)


def test_hashes(folder: Path) -> None:
    package = rouse.read_package(folder)
    counted: list[int] = []
    digests = hash_files(package.files, counted.append)
    assert digests == [hashlib.sha256((folder / file.path).read_bytes()).hexdigest() for file in package.files]
    assert sum(counted) == package.size_bytes
