"""Deploying a function: what the spec must say before anything is recorded, and what the artefact adds."""

from __future__ import annotations

import re

from rouse_common.errors import InvalidArgument
from rouse_contracts.functions import ARTEFACT_FORMAT_PYTHON, FunctionSpec, TensorSpec
from rouse_contracts.repository import Artefact
from rouse_contracts.specs import SpecError
from rouse_contracts.specs import check as check_rules
from rouse_contracts.tensors import DATATYPES

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
HANDLER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
MAX_FILES = 10_000
MAX_TENSORS = 256
MAX_RANK = 32


def check_spec(spec: FunctionSpec) -> None:
    """Checks what a user says of a function. Raises InvalidArgument BAD_NAME or BAD_SPEC."""
    if not NAME.fullmatch(spec.name):
        raise InvalidArgument(
            "BAD_NAME",
            f"'{spec.name[:128]}' is no name for a function: want 1 to 128 letters, digits, '.', '_' or '-', "
            "the first a letter or digit",
            function=spec.name,
        )
    if spec.handler and not HANDLER.fullmatch(spec.handler):
        raise _bad(spec, f"handler '{spec.handler[:200]}': want module:Class")
    if spec.HasField("objective") and not 0 < spec.objective.percentile < 1:
        raise _bad(spec, f"objective.percentile is {spec.objective.percentile}: want a number between 0 and 1, as 0.98")
    _check_scaling(spec)
    for kind, tensors in (("input", spec.signature.inputs), ("output", spec.signature.outputs)):
        names = [tensor.name for tensor in tensors]
        if len(names) > MAX_TENSORS:
            raise _bad(spec, f"{len(names)} {kind}s: want {MAX_TENSORS} at most")
        if len(set(names)) < len(names):
            raise _bad(spec, f"two {kind}s have one name: {', '.join(names)}")
        for tensor in tensors:
            _check_tensor(spec, kind, tensor)
    try:
        check_rules(spec)
    except SpecError as error:
        raise _bad(spec, str(error)) from None


def _check_scaling(spec: FunctionSpec) -> None:
    scaling = spec.scaling
    if scaling.max_instances and scaling.min_instances > scaling.max_instances:
        raise _bad(
            spec, f"scaling.min_instances is {scaling.min_instances}, scaling.max_instances {scaling.max_instances}"
        )
    if spec.scaling.HasField("idle_timeout") and scaling.idle_timeout.ToNanoseconds() < 0:
        raise _bad(spec, "scaling.idle_timeout is negative")


def check_files(name: str, count: int) -> None:
    """Checks the number of an artefact's files. Raises InvalidArgument BAD_ARTEFACT."""
    if not 1 <= count <= MAX_FILES:
        raise InvalidArgument(
            "BAD_ARTEFACT", f"function '{name}' has {count} files: want 1 to {MAX_FILES}", function=name
        )


def _check_tensor(spec: FunctionSpec, kind: str, tensor: TensorSpec) -> None:
    if not tensor.name:
        raise _bad(spec, f"an {kind} has no name")
    if tensor.datatype not in DATATYPES:
        known = ", ".join(sorted(DATATYPES))
        raise _bad(spec, f"{kind} '{tensor.name}' has the datatype '{tensor.datatype[:40]}': want one of {known}")
    if len(tensor.shape) > MAX_RANK or any(size < -1 for size in tensor.shape):
        raise _bad(
            spec,
            f"{kind} '{tensor.name}' has the shape {list(tensor.shape)[: MAX_RANK + 1]}: want up to {MAX_RANK} sizes, "
            "-1 for any",
        )


def merge(spec: FunctionSpec, artefact: Artefact) -> FunctionSpec:
    """The spec with what only the artefact tells. What the user said of inputs or outputs wins over what was
    derived from the files. Raises InvalidArgument BAD_SPEC where neither says enough to serve it."""
    merged = FunctionSpec()
    merged.CopyFrom(spec)
    if not spec.signature.inputs:
        merged.signature.inputs.extend(artefact.signature.inputs)
    if not spec.signature.outputs:
        merged.signature.outputs.extend(artefact.signature.outputs)
    if artefact.format == ARTEFACT_FORMAT_PYTHON and not spec.handler:
        raise _bad(spec, 'a Python package needs a handler: handler = "module:Class" in rouse.toml')
    if not merged.signature.outputs:
        raise _bad(spec, "the files do not tell its tensors: add [[inputs]] and [[outputs]] to rouse.toml")
    return merged


def _bad(spec: FunctionSpec, text: str) -> InvalidArgument:
    return InvalidArgument("BAD_SPEC", f"function '{spec.name}': {text}", function=spec.name)
