"""What a program of torch.export may name."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from rouse import exported
from rouse_common.errors import InvalidArgument
from rouse_model_repository.inspection import programs
from rouse_testkit import models


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("mlp")
    models.write_exported_mlp(folder)
    exported.convert(folder / "model.pt2", folder)
    loaded: dict[str, Any] = json.loads((folder / "program.json").read_text())
    return loaded


def test_a_signature(content: dict[str, Any]) -> None:
    signature = programs.signature(content)
    assert [(t.name, t.datatype, list(t.shape)) for t in signature.inputs] == [("input", "FP32", [-1, 16])]
    assert [(t.name, t.datatype, list(t.shape)) for t in signature.outputs] == [("output", "FP32", [-1, 4])]


def refusal(content: Any) -> str:
    with pytest.raises(InvalidArgument) as caught:
        programs.signature(content)
    assert caught.value.reason == "BAD_ARTEFACT"
    return caught.value.message


@pytest.mark.parametrize(
    "target",
    [
        "os.system", "torch.load", "torch.ops.load_library.x", "torch.ops.aten.__class__",
        "torch.ops.aten.add.__globals__",
        "_operator.methodcaller", "_operator.attrgetter", "torch.hub.load", "#extension", "math.__loader__", "",
    ],
)  # fmt: skip
def test_only_operators_are_called(content: dict[str, Any], target: str) -> None:
    changed = copy.deepcopy(content)
    changed["program"]["graph_module"]["graph"]["nodes"][0]["target"] = target
    assert "is no operator" in refusal(changed)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')", "exit()", "open('x1')", "Symbol('s0').args", "Symbol('s0', evil=1)", "(lambda: 1)()",
        "Symbol('a b')", "x" * 20_000, "Integer.real", "Symbol('s0') if 1 else 2",
    ],
)  # fmt: skip
def test_sizes_are_expressions_of_sizes(content: dict[str, Any], expression: str) -> None:
    changed = copy.deepcopy(content)
    changed["program"]["range_constraints"] = {"deep": [{"expr_str": expression}]}
    assert "is no expression" in refusal(changed)


@pytest.mark.parametrize(
    "expression",
    [
        "Symbol('s31', positive=True, integer=True)", "Integer(4)", "s0 + 3*s1", "Float(0.5)",
        "Mul(Integer(4), Symbol('s27', positive=True, integer=True))",
        "FloorDiv(Symbol('s0', integer=True), Integer(2))",
    ],
)  # fmt: skip
def test_expressions_that_pytorch_writes(content: dict[str, Any], expression: str) -> None:
    changed = copy.deepcopy(content)
    changed["program"]["range_constraints"] = {"s0": {"expr_str": expression}}
    programs.signature(changed)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "x"}, {"inputs": []}, {"inputs": [{"name": 1}]}, {"outputs": None}, {"program": None},
        {"program": {"guards_code": ["import os"]}},
    ],
)  # fmt: skip
def test_what_is_no_program(content: dict[str, Any], change: dict[str, Any]) -> None:
    refusal({**content, **change})
