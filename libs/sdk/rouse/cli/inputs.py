"""Inputs from the command line: JSON, files, or drawn from the signature."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

import rouse
from rouse_contracts.arrays import DTYPES

MAX_FILE_BYTES = 1 << 30
MAX_ELEMENTS = 1 << 28
LARGEST_INTEGER = 100
WORDS = ("models", "sleep", "in", "host", "memory", "until", "a", "request", "wakes", "them")


@dataclass(frozen=True)
class Drawing:
    """What is drawn of the inputs that are not given: nothing, or values of these sizes."""

    wanted: bool = False
    seed: int = 0
    batch: int = 1
    dims: Sequence[str] = ()


def gather(function: str, given: Sequence[str], specs: Sequence[rouse.TensorSpec], drawing: Drawing) -> dict[str, Any]:
    """Every input: as given, else drawn. Raises click.UsageError where one is missing and none are drawn."""
    values = parse(given, specs)
    missing = [spec for spec in specs if spec.name not in values]
    if missing and not drawing.wanted:
        wanted = ", ".join(f"{s.name} {s.datatype}{list(s.shape)}" for s in missing)
        raise click.UsageError(f"'{function}' needs {wanted}: give each as --input NAME=VALUE, or add --random")
    rng = np.random.default_rng(drawing.seed)
    return values | {spec.name: draw(spec, rng, drawing.batch, drawing.dims) for spec in missing}


def parse(given: Sequence[str], specs: Sequence[rouse.TensorSpec]) -> dict[str, Any]:
    """`name=VALUE` texts as values; VALUE is JSON, @file.json, @file.npy, or for BYTES any text or @file.

    A value with fewer dimensions than the function takes gets leading ones. Raises click.UsageError.
    """
    by_name = {spec.name: spec for spec in specs}
    values: dict[str, Any] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.BadParameter(f"'{text}' is not name=VALUE", param_hint="--input")
        if name not in by_name:
            raise click.BadParameter(f"there is no input '{name}'; known: {', '.join(by_name)}", param_hint="--input")
        if name in values:
            raise click.BadParameter(f"'{name}' is given twice", param_hint="--input")
        spec = by_name[name]
        read = _file(name, Path(value[1:]), spec) if value.startswith("@") else _literal(name, value, spec)
        values[name] = _lift(name, read, spec)
    return values


def draw(spec: rouse.TensorSpec, rng: np.random.Generator, batch: int, dims: Sequence[str]) -> Any:
    """A random value of the signature; `batch` is an unknown first size, `dims` give other unknown ones.

    Floats are standard normal, integers 0 to 99; a name with "mask" gets ones and one with
    "token_type" zeros, as language models want them.
    """
    shape = [_known(spec, axis, batch, dims) if known == -1 else known for axis, known in enumerate(spec.shape)]
    count = int(np.prod(shape, dtype=object))
    if count > MAX_ELEMENTS:
        raise click.UsageError(f"input '{spec.name}' of shape {shape} would have {count} elements")
    if spec.datatype == "BYTES":
        words = [" ".join(rng.choice(WORDS, 8)).encode() for _ in range(count)]
        return np.array([*words, None], dtype=object)[:-1].reshape(shape)
    if spec.datatype == "BF16":
        return rng.standard_normal(shape).tolist()
    dtype = DTYPES[spec.datatype]
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if "mask" in spec.name:
        return np.ones(shape, dtype)
    if "token_type" in spec.name:
        return np.zeros(shape, dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else LARGEST_INTEGER, shape).astype(dtype)


def _known(spec: rouse.TensorSpec, axis: int, batch: int, dims: Sequence[str]) -> int:
    """The size asked for an unknown axis: --dim NAME.AXIS=N, else --batch for the first, else --dim N, else 16."""
    general = 16
    for text in dims:
        place, separator, number = text.rpartition("=")
        if not number.isascii() or not number.isdigit():
            raise click.BadParameter(f"'{text}' is neither N nor NAME.AXIS=N", param_hint="--dim")
        if place == f"{spec.name}.{axis}":
            return int(number)
        if not separator:
            general = int(number)
    return batch if axis == 0 else general


def _literal(name: str, text: str, spec: rouse.TensorSpec) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        if spec.datatype == "BYTES":
            return text
        raise click.BadParameter(f"'{name}' is not JSON: {error}", param_hint="--input") from None
    if spec.datatype == "BYTES" and not isinstance(value, str | list):
        return text
    return value


def _file(name: str, path: Path, spec: rouse.TensorSpec) -> Any:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise click.BadParameter(f"{path} is larger than {MAX_FILE_BYTES} bytes", param_hint="--input")
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        if path.suffix == ".json":
            return json.loads(path.read_text())
        if spec.datatype == "BYTES":
            return np.array([path.read_bytes(), None], dtype=object)[:-1]
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"'{name}': {path} cannot be read: {error}", param_hint="--input") from None
    raise click.BadParameter(
        f"'{name}': {path} is neither .npy nor .json, and only BYTES inputs take other files", param_hint="--input"
    )


def _lift(name: str, value: Any, spec: rouse.TensorSpec) -> Any:
    if isinstance(value, np.ndarray):
        rank = value.ndim
    else:
        try:
            rank = np.asarray(value).ndim
        except ValueError as error:
            raise click.BadParameter(f"'{name}' is not a regular array: {error}", param_hint="--input") from None
    missing = len(spec.shape) - rank
    if missing > 0 and all(size in (-1, 1) for size in spec.shape[:missing]):
        for _ in range(missing):
            value = value[np.newaxis] if isinstance(value, np.ndarray) else [value]
    return value
