"""Which requests a tape answers, and what a tape is called as a state of its artefact.

A tape answers requests with inputs of just these names, datatypes and shapes. Its name as a state says them, in the
order in which they were recorded, then its outputs, then its number among the tapes of the same inputs, each of which
is for other values that the function branched on: "x:FP32:2,64;mask:BOOL:2;>y;z;#0".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote

from rouse_contracts.states import NAME

if TYPE_CHECKING:
    # Instances use this module, and need nothing of the control plane's contract.
    from rouse_contracts.cluster import NodeReport

DATATYPES = frozenset({
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64",
})  # fmt: skip
# Of one artefact's versions together; the rest of what a node keeps of it is for other kinds of state.
MAX_TAPES = 128
# Tapes of the same inputs, as many as an executor takes.
MAX_VARIANTS = 8
_FORM = re.compile(r"(?P<inputs>(?:[^:;>#]+:[A-Z0-9]+:[0-9,]*;)*)>(?P<outputs>(?:[^:;>#]+;)+)#(?P<number>[0-9]{1,3})")


class Shaped(Protocol):
    """A tensor, as far as tapes tell requests apart."""

    @property
    def name(self) -> str: ...

    @property
    def datatype(self) -> str: ...

    @property
    def shape(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Input:
    """One input of the requests that a tape answers."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Answers:
    """What a tape answers, and with what.

    Args:
        inputs, outputs: in the order in which they were recorded.
        number: among the tapes of the same inputs.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    number: int = 0

    @property
    def key(self) -> str:
        return key(self.inputs)


def key(inputs: Iterable[Shaped]) -> str:
    """What requests have in common that the same tapes answer: the inputs, whatever their order."""
    return "".join(sorted(map(_text, inputs)))


def counts(reports: Iterable[NodeReport]) -> dict[str, int]:
    """Of each version that has tapes on one of these nodes the most that one has."""
    found: dict[str, int] = {}
    for report in reports:
        for entry in report.residency:
            if entry.tapes and entry.state != "ABSENT":
                found[entry.version_id] = max(entry.tapes, found.get(entry.version_id, 0))
    return found


def name_of(answers: Answers) -> str | None:
    """The name of a tape as a state; None where it would be longer than names are."""
    inputs, outputs = "".join(map(_text, answers.inputs)), "".join(f"{_quoted(name)};" for name in answers.outputs)
    name = f"{inputs}>{outputs}#{answers.number}"
    return name if NAME.fullmatch(name) else None


def parse(name: str) -> Answers | None:
    """What a tape of that name answers; None where it is no name of a tape."""
    found = _FORM.fullmatch(name)
    if found is None:
        return None
    try:
        inputs = tuple(_input(text) for text in found["inputs"].split(";")[:-1])
    except ValueError:
        return None
    outputs = tuple(unquote(text) for text in found["outputs"].split(";")[:-1])
    unique = len({entry.name for entry in inputs}) == len(inputs) and len(set(outputs)) == len(outputs)
    return Answers(inputs, outputs, int(found["number"])) if unique else None


def _input(text: str) -> Input:
    name, datatype, shape = text.split(":")
    if datatype not in DATATYPES:
        raise ValueError(datatype)
    return Input(unquote(name), datatype, tuple(int(size) for size in shape.split(",") if shape))


def _text(tensor: Shaped) -> str:
    return f"{_quoted(tensor.name)}:{tensor.datatype}:{','.join(map(str, tensor.shape))};"


def _quoted(name: str) -> str:
    return quote(name, safe="[]{}()<=+*/@!$&|~^?'\"-_.")
