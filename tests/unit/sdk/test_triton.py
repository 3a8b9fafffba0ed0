"""Folders of Triton model repositories, as far as they map."""

from __future__ import annotations

from pathlib import Path

import pytest

import rouse

MODEL = "class TritonPythonModel:\n    def execute(self, requests): ...\n"
TENSORS = """
input [{ name: "a" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "t" data_type: TYPE_STRING dims: [ -1 ] }]
output [{ name: "b" data_type: TYPE_INT64 dims: [ 1, 2 ] }]
"""


def model(tmp_path: Path, config: str, *files: str) -> Path:
    folder = tmp_path / "m"
    for file in files or ("1/model.py",):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(MODEL)
    (folder / "config.pbtxt").write_text(config)
    return folder


def test_what_maps(tmp_path: Path) -> None:
    folder = model(
        tmp_path,
        'name: "sums" backend: "python" max_batch_size: 8 '
        "dynamic_batching { max_queue_delay_microseconds: 500 } instance_group [{ count: 2 }, { count: 1 }] "
        'parameters: { key: "threshold" value: { string_value: "0.5" } }' + TENSORS,
        "1/model.py", "2/model.py", "10/model.py", "10/helper.py", "labels.txt",
    )  # fmt: skip
    package = rouse.read_package(folder)
    assert (package.format, package.default_name) == ("PYTHON", "sums")
    assert [file.path for file in package.files] == ["10/helper.py", "10/model.py", "config.pbtxt", "labels.txt"]
    manifest = package.manifest
    assert manifest.handler == "model:TritonPythonModel"
    assert [(t.name, t.datatype, t.shape) for t in manifest.inputs] == [
        ("a", "FP32", (-1, 16)),
        ("t", "BYTES", (-1, -1)),
    ]
    assert [(t.name, t.datatype, t.shape) for t in manifest.outputs] == [("b", "INT64", (-1, 1, 2))]
    assert manifest.batching == rouse.Batching(8, 500)
    assert manifest.scaling == rouse.Scaling(max_instances=3)
    assert manifest.options == {"threshold": "0.5"}
    assert package.ignored == ("version 1 (version 10 is deployed)", "version 2 (version 10 is deployed)")


def test_the_least_that_is_needed(tmp_path: Path) -> None:
    package = rouse.read_package(model(tmp_path, TENSORS))
    assert package.default_name == "m"
    assert package.manifest.batching is None
    assert package.manifest.inputs[0].shape == (16,)
    assert not package.ignored


def test_a_version_policy_chooses(tmp_path: Path) -> None:
    folder = model(tmp_path, "version_policy { specific { versions: [1] } }" + TENSORS, "1/model.py", "2/model.py")
    assert [file.path for file in rouse.read_package(folder).files] == ["1/model.py", "config.pbtxt"]


def test_a_decoupled_model(tmp_path: Path) -> None:
    package = rouse.read_package(
        model(tmp_path, "model_transaction_policy { decoupled: true } max_batch_size: 4 dynamic_batching {}" + TENSORS)
    )
    assert package.manifest.decoupled
    assert package.manifest.batching is None
    assert package.ignored == ("dynamic_batching (a decoupled function takes one request at a time)",)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("optimization { priority: PRIORITY_MAX }", "optimization"),
        ("instance_group [{ kind: KIND_GPU gpus: [0] }]", "instance_group.kind (the mesh chooses the device)"),
        ("max_batch_size: 4", "max_batch_size (without dynamic_batching the rows of a request are not limited)"),
        ("max_batch_size: 4 dynamic_batching { preserve_ordering: true }", "dynamic_batching.preserve_ordering"),
        ("response_cache { enable: true }", "response_cache"),
        ('model_warmup [{ name: "w" }]', "model_warmup"),
        (
            'parameters: { key: "EXECUTION_ENV_PATH" value: { string_value: "env.tar.gz" } }',
            "parameters.EXECUTION_ENV_PATH (libraries have to be installed on the nodes)",
        ),
    ],
)
def test_what_does_not_map_is_named(tmp_path: Path, config: str, says: str) -> None:
    assert says in rouse.read_package(model(tmp_path, config + TENSORS)).ignored


@pytest.mark.parametrize(
    ("config", "reason", "says"),
    [
        ('backend: "onnxruntime"' + TENSORS, "BAD_SPEC", "'onnxruntime' is not supported"),
        ('platform: "tensorrt_plan"' + TENSORS, "BAD_SPEC", "'tensorrt' is not supported"),
        ('platform: "pytorch_libtorch"' + TENSORS, "PICKLE_REFUSED", "torch.export"),
        ("ensemble_scheduling { step [] }" + TENSORS, "BAD_SPEC", "ensembles are not supported"),
        ("sequence_batching {}" + TENSORS, "BAD_SPEC", "sequence batching is not supported"),
        ('input [{ name: "a" data_type: TYPE_FP32 dims: [1] }]', "BAD_SPEC", "names no output"),
        (
            'input [{ name: "a" data_type: TYPE_FP32 dims: [4] reshape { shape: [2, 2] } }]' + TENSORS,
            "BAD_SPEC",
            "reshape is not supported",
        ),
        ("no_such_field: 1", "BAD_SPEC", "no_such_field"),
        ("name: ", "BAD_SPEC", "line 1"),
        ('default_model_filename: "../x.py"' + TENSORS, "BAD_SPEC", "want a Python module"),
        ("version_policy { specific { versions: [7] } }" + TENSORS, "BAD_ARTEFACT", "has no version to deploy"),
    ],
)
def test_what_would_change_results_is_refused(tmp_path: Path, config: str, reason: str, says: str) -> None:
    with pytest.raises(rouse.PackageError, match=says) as caught:
        rouse.read_package(model(tmp_path, config))
    assert caught.value.reason == reason


def test_a_torchscript_model_is_shown_the_way(tmp_path: Path) -> None:
    with pytest.raises(rouse.PackageError, match=r"model\.pt2"):
        rouse.read_package(model(tmp_path, TENSORS, "1/model.pt"))


def test_a_whole_repository_names_its_models(tmp_path: Path) -> None:
    model(tmp_path, TENSORS)
    with pytest.raises(rouse.PackageError, match=r"model repository: deploy one of its models \(m\)"):
        rouse.read_package(tmp_path)
