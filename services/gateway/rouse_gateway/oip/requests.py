"""An inference as the protocol has it, and what becomes of it, whichever transport carries them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rouse_common.errors import InvalidArgument
from rouse_gateway.asked import Answer
from rouse_gateway.oip import parameters
from rouse_gateway.oip.parameters import Parameters, Value
from rouse_gateway.wire import TensorView

REGION, OFFSET, SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"
CLASSIFICATION = "classification"
MAX_CLASSES = 10_000


class Caller(NamedTuple):
    """Who asks, and how.

    Args:
        tenant: whose request it is; empty where authentication is off.
        weight: the tenant's share beside others.
        time_left_s: seconds until the deadline that the transport has set; None where there is none.
        idempotency_key: as the transport's own header gives it.
    """

    tenant: str = ""
    weight: int = 1
    time_left_s: float | None = None
    idempotency_key: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A piece of a shared memory region: bytes `offset` to `offset + size` of it."""

    region: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """An input whose bytes stand in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Wanted:
    """An output that is asked for.

    Args:
        classes: 0: the tensor; else so many of its largest values, as the classification extension has it.
        place: where to put its bytes; None: into the reply.
    """

    name: str
    classes: int = 0
    place: Place | None = None


class Request(NamedTuple):
    """One inference request.

    Args:
        model, version: the function, and its version ("" is whichever gets the traffic).
        id: echoed.
        outputs: outputs wanted; empty: all.
    """

    model: str
    version: str
    id: str
    inputs: Sequence[TensorView | PlacedTensor]
    outputs: Sequence[Wanted] = ()
    parameters: Parameters = parameters.NONE


class Reply(NamedTuple):
    """One response: the answer, its `outputs` as the request wants them, and where those are that were put into
    shared memory (their data is empty then), by name."""

    answer: Answer
    outputs: Sequence[TensorView]
    placed: Mapping[str, Place]


def read_place(model: str, tensor: str, given: Mapping[str, Value]) -> Place | None:
    """The piece of shared memory that a tensor's parameters name. Raises InvalidArgument BAD_SHARED_MEMORY."""
    if REGION not in given:
        return None
    region, offset, size = given[REGION], given.get(OFFSET, 0), given.get(SIZE)

    def bad(text: str) -> InvalidArgument:
        return InvalidArgument(
            "BAD_SHARED_MEMORY", f"tensor '{tensor}' of model '{model}': {text}", function=model, tensor=tensor
        )

    if not isinstance(region, str) or not region:
        raise bad(f"{REGION} is not the name of a region")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise bad(f"{SIZE} must say how many bytes of region '{region[:80]}' are meant")
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise bad(f"{OFFSET} must be 0 or more bytes")
    return Place(region, offset, size)


def read_wanted(model: str, name: str, given: Mapping[str, Value]) -> Wanted:
    """A requested output with its parameters. Raises InvalidArgument."""
    if not given:
        return Wanted(name)
    classes = given.get(CLASSIFICATION, 0)
    if isinstance(classes, bool) or not isinstance(classes, int) or not 0 <= classes <= MAX_CLASSES:
        raise InvalidArgument(
            "BAD_PARAMETER",
            f"output '{name}' of model '{model}': {CLASSIFICATION} must be 0 to {MAX_CLASSES}, got {str(classes)[:40]}",
            function=model,
            parameter=CLASSIFICATION,
        )
    return Wanted(name, classes, read_place(model, name, given))
