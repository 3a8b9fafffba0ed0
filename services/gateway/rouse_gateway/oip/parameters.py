"""Parameters of a request, whichever transport they came by, as what the mesh acts on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rouse_common.errors import InvalidArgument
from rouse_contracts import functions

Value = bool | int | float | str

TIMEOUT = "timeout"
PRIORITY = "priority"
SEQUENCE_ID, SEQUENCE_START, SEQUENCE_END = "sequence_id", "sequence_start", "sequence_end"
IDEMPOTENCY_KEY = "idempotency_key"
EMPTY_FINAL = "triton_enable_empty_final_response"
# The protocol keeps these names to itself: they are not the function's to see.
RESERVED = {
    TIMEOUT,
    PRIORITY,
    SEQUENCE_ID,
    SEQUENCE_START,
    SEQUENCE_END,
    IDEMPOTENCY_KEY,
    "binary_data_output",
    "headers",
}
RESERVED_PREFIX = "triton_"

MAX_PARAMETERS = 64
MAX_PARAMETER_BYTES = 16 << 10
MAX_PRIORITY = 1 << 31
MAX_TIMEOUT_S = 7 * 86_400.0
MAX_ID_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a request's parameters say.

    Args:
        timeout_s: seconds that the request may take, from its arrival; None where it sets none.
        options: for the function and the queues; None where there are none.
        idempotency_key: requests with one key are one request.
        empty_final: whether a stream shall end with a response without outputs.
    """

    timeout_s: float | None = None
    options: functions.RequestOptions | None = None
    idempotency_key: str = ""
    empty_final: bool = False


NONE = Parameters()


def read(model: str, given: Mapping[str, Value]) -> Parameters:
    """Parameters by name as what they mean. Raises InvalidArgument BAD_TIMEOUT or BAD_PARAMETER."""
    if not given:
        return NONE
    if len(given) > MAX_PARAMETERS:
        raise _bad(model, "parameters", f"{len(given)} parameters are given, {MAX_PARAMETERS} are the most")
    _check_text(model, given)
    options = functions.RequestOptions()
    priority = _whole(model, given, PRIORITY, MAX_PRIORITY)
    if priority:
        options.priority = priority
    _read_sequence(model, given, options)
    _read_own(model, given, options)
    key = given.get(IDEMPOTENCY_KEY, "")
    if not isinstance(key, str) or len(key) > MAX_ID_LENGTH:
        raise _bad(model, IDEMPOTENCY_KEY, f"want a string of at most {MAX_ID_LENGTH} characters")
    return Parameters(
        timeout_s=_timeout(model, given),
        options=options if options.ListFields() else None,
        idempotency_key=key,
        empty_final=_flag(model, given, EMPTY_FINAL),
    )


def _check_text(model: str, given: Mapping[str, Value]) -> None:
    """JSON may hold halves of characters, which no contract can carry."""
    for name, value in given.items():
        try:
            name.encode()
            if isinstance(value, str):
                value.encode()
        except UnicodeEncodeError:
            raise _bad(model, ascii(name), "it is no text of whole characters") from None


def check_options(model: str, options: functions.RequestOptions) -> None:
    """Checks options that came as such. Raises InvalidArgument BAD_PARAMETER."""
    if len(options.parameters) > MAX_PARAMETERS:
        raise _bad(
            model, "parameters", f"{len(options.parameters)} parameters are given, {MAX_PARAMETERS} are the most"
        )
    if options.ByteSize() > 2 * MAX_PARAMETER_BYTES:
        raise _bad(model, "parameters", f"they are longer than {MAX_PARAMETER_BYTES} bytes together")
    if options.priority > MAX_PRIORITY:
        raise _bad(model, PRIORITY, f"want a whole number of 0 to {MAX_PRIORITY}, got {options.priority}")
    if options.HasField("sequence") and not 0 < len(options.sequence.id) <= MAX_ID_LENGTH:
        raise _bad(model, SEQUENCE_ID, f"want 1 to {MAX_ID_LENGTH} characters, got {len(options.sequence.id)}")


def _bad(model: str, name: str, text: str) -> InvalidArgument:
    return InvalidArgument(
        "BAD_PARAMETER",
        f"parameter {name[:80]} of the request for model '{model}': {text}",
        function=model,
        parameter=name[:80],
    )


def _timeout(model: str, given: Mapping[str, Value]) -> float | None:
    """Whole microseconds, as seconds; 0 is none."""
    value = given.get(TIMEOUT, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(
            "BAD_TIMEOUT",
            f"parameter timeout of the request for model '{model}': want 0 or more whole microseconds, "
            f"got {str(value)[:40]}",
            function=model,
        )
    return min(value / 1e6, MAX_TIMEOUT_S) if value else None


def _whole(model: str, given: Mapping[str, Value], name: str, most: int) -> int:
    value = given.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise _bad(model, name, f"want a whole number of 0 to {most}, got {str(value)[:40]}")
    return value


def _flag(model: str, given: Mapping[str, Value], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise _bad(model, name, f"want true or false, got {str(value)[:40]}")
    return value


def _read_sequence(model: str, given: Mapping[str, Value], options: functions.RequestOptions) -> None:
    """A sequence id is a positive number or a string; 0 and "" are none."""
    value = given.get(SEQUENCE_ID, 0)
    start, end = _flag(model, given, SEQUENCE_START), _flag(model, given, SEQUENCE_END)
    if isinstance(value, bool) or not isinstance(value, int | str) or (isinstance(value, int) and value < 0):
        raise _bad(model, SEQUENCE_ID, f"want a positive whole number or a string, got {str(value)[:40]}")
    if isinstance(value, str) and len(value) > MAX_ID_LENGTH:
        raise _bad(model, SEQUENCE_ID, f"want at most {MAX_ID_LENGTH} characters, got {len(value)}")
    if value:
        options.sequence.CopyFrom(functions.Sequence(id=str(value), start=start, end=end))
    elif start or end:
        raise _bad(model, SEQUENCE_ID, "a request that starts or ends a sequence needs the sequence's id")


def _read_own(model: str, given: Mapping[str, Value], options: functions.RequestOptions) -> None:
    """What is not the protocol's own goes to the function."""
    size = 0
    for name, value in given.items():
        if name in RESERVED or name.startswith(RESERVED_PREFIX):
            continue
        size += len(name) + (len(value) if isinstance(value, str) else 8)
        if size > MAX_PARAMETER_BYTES:
            raise _bad(model, name, f"the parameters are longer than {MAX_PARAMETER_BYTES} bytes together")
        parameter = options.parameters[name]
        if isinstance(value, bool):
            parameter.bool_value = value
        elif isinstance(value, int):
            if -(1 << 63) <= value < 1 << 63:
                parameter.int64_value = value
            elif 0 <= value < 1 << 64:
                parameter.uint64_value = value
            else:
                raise _bad(model, name, "want a number of 64 bits")
        elif isinstance(value, float):
            parameter.double_value = value
        else:
            parameter.string_value = value
