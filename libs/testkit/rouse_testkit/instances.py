"""Instances of small Python functions, started without a mesh."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np

from rouse_testkit import models
from rouse_testkit.artefacts import Staged, Tensors, stage
from rouse_testkit.doubles_instance import RunningInstance

X: Tensors = [("x", "FP32", [-1])]
Y: Tensors = [("y", "FP32", [-1])]
ONE = {"x": np.array([1.0], dtype=np.float32)}
PRINTED_WITHIN_S = 30.0


def function(tmp_path: Path, code: str, outputs: Tensors = Y, **options: str) -> Staged:
    """A function of `code`, which takes x FP32 [-1]."""
    folder = models.write_function(tmp_path / "f", "f", code, X, outputs)
    (tmp_path / "images").mkdir(exist_ok=True)
    return stage(
        folder, tmp_path / "images", name="f", handler="function:Function",
        inputs=X, outputs=outputs, options=options,
    )  # fmt: skip


def running(tmp_path: Path, staged: Staged, **environment: str) -> RunningInstance:
    """An instance with its socket in tmp_path/run."""
    (tmp_path / "run").mkdir(exist_ok=True)
    return RunningInstance(staged, tmp_path / "run", **environment)


async def until_line(instance: RunningInstance, text: str, count: int = 1) -> None:
    """Waits until `count` lines with `text` were printed."""
    async with asyncio.timeout(PRINTED_WITHIN_S):
        await instance.until(lambda: sum(text in line for line in instance.lines) >= count)


def traces(tmp_path: Path, name: str) -> list[dict[str, Any]]:
    """Spans of one name under tmp_path/traces."""
    rows = [json.loads(line) for file in tmp_path.glob("traces/*.jsonl") for line in file.read_text().splitlines()]
    return [row for row in rows if row["name"] == name]
