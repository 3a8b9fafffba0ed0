"""Programs of torch.export: program.json, as `rouse deploy` makes it out of model.pt2.

PyTorch finds operators by names and parses sizes as expressions, so both are checked here: a graph may name
operators and sizes, and nothing else that a name could lead to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rouse_common.errors import InvalidArgument
from rouse_contracts.functions import Signature
from rouse_model_repository.inspection.formats import PROGRAM, read_tensors
from rouse_model_repository.inspection.safetensors import shown

FORMAT = "rouse.torch_export.1"
MAX_BYTES = 64 << 20
ARITHMETIC = (
    "abs|add|and_|eq|floordiv|ge|getitem|gt|index|invert|le|lshift|lt|mod|mul|ne|neg|not_|or_|pos|pow|rshift|sub|truediv|"
    "xor"
)
TARGET = re.compile(
    r"torch\.ops\.(?!load_library|import_module)[a-z]\w*\.(?!__)\w+(\.(?!__)\w+)?"
    rf"|_operator\.({ARITHMETIC})|math\.[a-z]\w*|torch\.(_?sym_[a-z]\w*)",
    re.ASCII,
)
# As sympy writes them: "Mul(Integer(4), Symbol('s27', positive=True, integer=True))".
QUOTED = re.compile(r"'[A-Za-z]{1,8}\d{1,9}'", re.ASCII)
PUNCTUATION = re.compile(r"[\w\s(),.=<>+\-*/]*", re.ASCII)
WORD = re.compile(r"[^\W\d]\w*", re.ASCII)
SIZE_WORD = re.compile(r"[A-Z][A-Za-z]{0,31}|[su]\d{1,9}|integer|positive|nonnegative|real|finite|evaluate", re.ASCII)
MAX_EXPRESSION_CHARS = 10_000


def signature(content: Mapping[str, Any]) -> Signature:
    """Inputs and outputs of a program. Raises InvalidArgument BAD_ARTEFACT, also where it names what it must not."""
    if content.get("format") != FORMAT:
        raise _bad(f"its format is not {FORMAT}; it is made by `rouse deploy` out of model.pt2")
    result = Signature()
    for kind, into in (("inputs", result.inputs), ("outputs", result.outputs)):
        rows = content.get(kind)
        if not isinstance(rows, list) or not rows:
            raise _bad(f"it has no {kind}")
        for name, datatype, shape in read_tensors(kind, rows, _bad):
            into.add(name=name, datatype=datatype, shape=shape)
    program = content.get("program")
    if not isinstance(program, dict) or program.get("guards_code"):
        raise _bad("it holds no program, or one with code")
    for key, value in _strings(program):
        if key in ("target", "as_operator") and not TARGET.fullmatch(value):
            raise _bad(f"it calls '{shown(value)}', which is no operator of PyTorch")
        if key == "expr_str" and not _is_size(value):
            raise _bad(f"'{shown(value)}' is no expression of sizes")
    return result


def _is_size(text: str) -> bool:
    bare = QUOTED.sub("", text)
    if len(text) > MAX_EXPRESSION_CHARS or not PUNCTUATION.fullmatch(bare) or re.search(r"\.\D|\.$", bare):
        return False
    return all(SIZE_WORD.fullmatch(word) for word in WORD.findall(bare))


def _strings(value: Any) -> Iterator[tuple[str, str]]:
    """Every text under a key, without recursion: the graph is from somebody else."""
    waiting: list[Any] = [value]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, list):
            waiting += entry
        elif isinstance(entry, dict):
            for key, inner in entry.items():
                if isinstance(inner, str):
                    yield key, inner
                else:
                    waiting.append(inner)


def _bad(text: str) -> InvalidArgument:
    return InvalidArgument("BAD_ARTEFACT", f"{PROGRAM}: {text}", file=PROGRAM)
