"""What kind of artefact a set of files is, and what its descriptions say."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rouse_common.errors import InvalidArgument
from rouse_contracts.functions import (
    ARTEFACT_FORMAT_HUGGING_FACE,
    ARTEFACT_FORMAT_PYTHON,
    ARTEFACT_FORMAT_TORCH_EXPORT,
    ArtefactFormat,
    Signature,
)
from rouse_contracts.tensors import DATATYPES
from rouse_model_repository.inspection.safetensors import shown

CONFIG, MANIFEST, PROGRAM = "config.json", "rouse.toml", "program.json"
WEIGHTS, INDEX, CODE = ".safetensors", ".safetensors.index.json", ".py"
CLASS_NAME = re.compile(r"[A-Za-z_]\w{0,255}", re.ASCII)
MAX_TENSORS = 256
MAX_RANK = 32
MAX_NAME_CHARS = 256


def is_weights(path: str) -> bool:
    return path.endswith(WEIGHTS)


def load_json(path: str, data: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidArgument BAD_ARTEFACT naming the file."""
    try:
        loaded = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("BAD_ARTEFACT", f"{path} is not JSON: {error}", file=path) from None
    if not isinstance(loaded, dict):
        raise InvalidArgument("BAD_ARTEFACT", f"{path} does not hold a JSON object", file=path)
    return loaded


def load_manifest(data: bytes) -> dict[str, Any]:
    """rouse.toml. Raises InvalidArgument BAD_SPEC."""
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("BAD_SPEC", f"{MANIFEST} is not TOML: {error}", file=MANIFEST) from None


def architecture(config: Mapping[str, Any]) -> str:
    """The first of config.json's architectures, as "ResNetForImageClassification"; empty without any."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else ""
    return first if isinstance(first, str) and CLASS_NAME.fullmatch(first) else ""


def decide(paths: Collection[str], config: Mapping[str, Any], manifest: Mapping[str, Any]) -> ArtefactFormat:
    """The format of an artefact. In this order:

    1. rouse.toml names a handler: a Python package, whatever else is there.
    2. config.json names architectures and there are *.safetensors: a Hugging Face directory; its *.py files are
       kept and never run.
    3. There is a program.json: a program of torch.export; its *.py files are kept and never run.
    4. There is a *.py file: a Python package.

    Raises InvalidArgument BAD_ARTEFACT that says what is missing.
    """
    if manifest.get("handler"):
        return ARTEFACT_FORMAT_PYTHON
    weights, code = any(map(is_weights, paths)), any(path.endswith(CODE) for path in paths)
    if architecture(config):
        if weights:
            return ARTEFACT_FORMAT_HUGGING_FACE
        if not code:
            text = f"{CONFIG} names {architecture(config)}, but there is no *.safetensors file with its weights"
            raise InvalidArgument("BAD_ARTEFACT", f"{text}; save it with save_pretrained(safe_serialization=True)")
    if PROGRAM in paths:
        return ARTEFACT_FORMAT_TORCH_EXPORT
    if code:
        return ARTEFACT_FORMAT_PYTHON
    if CONFIG in paths:
        raise InvalidArgument("BAD_ARTEFACT", f"{CONFIG} names no class under 'architectures'", file=CONFIG)
    raise InvalidArgument(
        "BAD_ARTEFACT",
        "neither a Hugging Face directory (config.json with architectures, and *.safetensors) nor a Python package "
        "(rouse.toml with a handler, and *.py) nor a program of torch.export (program.json)",
    )


def check_index(path: str, index: Mapping[str, Any], found: Mapping[str, Collection[str]]) -> None:
    """Checks that every tensor of a sharded model is in the file that its index names.

    Args:
        found: names of the tensors by file.
    Raises: InvalidArgument BAD_ARTEFACT.
    """
    folder = path.rpartition("/")[0]
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise InvalidArgument("BAD_ARTEFACT", f"{path} has no weight_map", file=path)
    for tensor, shard in weight_map.items():
        where = shown(f"{folder}/{shard}" if folder else str(shard))
        if where not in found:
            raise InvalidArgument("BAD_ARTEFACT", f"{path} names the file {where}, which is missing", file=path)
        if tensor not in found[where]:
            text = f"{path} says that tensor '{shown(tensor)}' is in {where}, but it is not"
            raise InvalidArgument("BAD_ARTEFACT", text, file=path, tensor=shown(tensor))


def declared_signature(manifest: Mapping[str, Any]) -> Signature:
    """[[inputs]] and [[outputs]] of rouse.toml; empty where there are none. Raises InvalidArgument BAD_SPEC."""
    signature = Signature()
    for kind, into in (("inputs", signature.inputs), ("outputs", signature.outputs)):
        for name, datatype, shape in read_tensors(kind, manifest.get(kind, []), _bad_spec):
            into.add(name=name, datatype=datatype, shape=shape)
    return signature


def read_tensors(kind: str, rows: Any, bad: Callable[[str], InvalidArgument]) -> list[tuple[str, str, list[int]]]:
    """Names, datatypes and shapes of a list of tables. Raises what `bad` makes of a text that says what is wrong."""
    if not isinstance(rows, list) or len(rows) > MAX_TENSORS:
        raise bad(f"{kind} is not a list of at most {MAX_TENSORS} tensors")
    tensors = [_tensor(kind, row, bad) for row in rows]
    names = [name for name, _, _ in tensors]
    for name in names:
        if names.count(name) > 1:
            raise bad(f"two {kind} have the name '{name}'")
    return tensors


def _tensor(kind: str, row: Any, bad: Callable[[str], InvalidArgument]) -> tuple[str, str, list[int]]:
    if not isinstance(row, dict):
        raise bad(f"[[{kind}]] is not a table")
    name, datatype, shape = row.get("name"), row.get("datatype"), row.get("shape")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise bad(f"one of [[{kind}]] has no name of 1 to {MAX_NAME_CHARS} characters")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise bad(f"{kind} '{name}' has the datatype {datatype!r}; known: {', '.join(sorted(DATATYPES))}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(_is_size(size) for size in shape):
        raise bad(f"{kind} '{name}': want a shape of at most {MAX_RANK} sizes, -1 for any")
    return name, datatype, shape


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 1 << 62


def _bad_spec(text: str) -> InvalidArgument:
    return InvalidArgument("BAD_SPEC", f"{MANIFEST}: {text}", file=MANIFEST)
