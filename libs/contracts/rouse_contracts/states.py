"""Materialised state of artefacts: what it depends on, how it is identified, what is refused.

The idea is Medusa's (section 4): what a cold start would make anew is made once and kept beside the weights. Here it
is tapes, learnt operator results and CUDA graphs; see docs/native.md, "Tapes".
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from rouse_contracts.functions import FunctionSpec
from rouse_contracts.repository import MadeWith, State, StateKind, WeightsLayout

MAX_STATES = 256
MAX_STATE_BYTES = 64 << 20
MAX_TOTAL_BYTES = 512 << 20
DEVICE_TYPES = ("host", "cuda")
KINDS = {
    StateKind.STATE_KIND_TAPE: "tape",
    StateKind.STATE_KIND_TEMPLATES: "templates",
    StateKind.STATE_KIND_GRAPH: "graph",
}
DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
TORCH_VERSION = re.compile(r"[0-9][0-9A-Za-z.]{0,31}", re.ASCII)
NAME = re.compile(r"[!-~]{1,256}", re.ASCII)


class BadState(ValueError):
    """A state that cannot be meant; the text says what is wrong with which field."""


def layout_digest(layout: WeightsLayout) -> str:
    """sha256, in hex, of where every tensor of the weights stands in the image, and as what."""
    rows = [[t.name, t.file, t.dtype, list(t.shape), t.image_offset_bytes, t.size_bytes] for t in layout.tensors]
    return _sha256([layout.image_bytes, rows])


def program_digest(spec: FunctionSpec) -> str:
    """sha256, in hex, of what a spec tells the artefact's code, and so what its operations may depend on.

    Of secrets it has the names only: a function whose operations depend on a secret's value has to do without tapes.
    """
    secrets = sorted([reference.variable, reference.secret] for reference in spec.secrets)
    signature = spec.signature.SerializeToString(deterministic=True).hex()
    return _sha256([spec.handler, sorted(spec.options.items()), sorted(spec.environment.items()), secrets, signature])


def torch_version(text: str) -> str:
    """PyTorch's version as `MadeWith` has it: builds of one version for several devices have the same."""
    return text.partition("+")[0]


def identity(state: State) -> str:
    """64 hex digits that two states of one artefact share if and only if one replaces the other."""
    made = state.made_with
    return _sha256(
        [
            state.kind,
            state.name,
            made.torch_version,
            made.device_type,
            made.layout_digest,
            made.program_digest,
            made.base,
        ]
    )


def file_name(state: State) -> str:
    """The name of a state's file on a node: kind, identity and blob."""
    return f"{KINDS[state.kind]}-{identity(state)}-{state.digest}"


def matches(made: MadeWith, wanted: MadeWith) -> bool:
    """Whether a state made with one holds for the other; fields that are empty or 0 in `wanted` match everything."""
    return all(getattr(made, field.name) == value for field, value in wanted.ListFields())


def check(state: State) -> None:
    """Raises BadState."""
    made = state.made_with
    if state.kind not in KINDS:
        raise BadState(f"kind is {state.kind}, want one of {', '.join(KINDS.values())}")
    if not NAME.fullmatch(state.name):
        raise BadState("name is not 1 to 256 printable ASCII characters without spaces")
    if not TORCH_VERSION.fullmatch(made.torch_version):
        raise BadState(f"made_with.torch_version is {made.torch_version[:40]!r}, want a version as 2.13.0")
    if made.device_type not in DEVICE_TYPES:
        raise BadState(f"made_with.device_type is {made.device_type[:40]!r}, want {' or '.join(DEVICE_TYPES)}")
    for what in ("layout_digest", "program_digest"):
        if not DIGEST.fullmatch(getattr(made, what)):
            raise BadState(f"made_with.{what} is no sha256 of 64 lower-case hex digits")
    if not state.size_bytes:
        raise BadState("size_bytes is 0: there is no empty state")


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()
