"""One inference as the contract has it: what was asked for as a message, and a message as a Result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rouse import convert
from rouse.errors import Internal, InvalidArgument
from rouse.types import Result
from rouse_contracts import functions as contract
from rouse_contracts.arrays import to_array
from rouse_contracts.tensors import TensorError

# What a request may tell a function beside its tensors.
Parameter = bool | int | float | str
MAX_PRIORITY = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says beside its inputs; see `AsyncClient.infer`."""

    version: int | None = None
    request_id: str = ""
    idempotency_key: str = ""
    priority: int = 0
    sequence_id: str | int | None = None
    sequence_start: bool = False
    sequence_end: bool = False
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


def message(
    function: str, tensors: Iterable[contract.Tensor], outputs: Sequence[str] | None, asked: Asked
) -> contract.InferRequest:
    """The request. Raises InvalidArgument BAD_PARAMETER."""
    request = contract.InferRequest(
        function=function,
        version=str(asked.version) if asked.version is not None else "",
        request_id=asked.request_id,
        idempotency_key=asked.idempotency_key,
        inputs=tensors,
        output_names=list(outputs or ()),
    )
    if not 0 <= asked.priority <= MAX_PRIORITY:
        raise _bad("priority", f"{asked.priority}: 1 is the highest, 0 the default")
    if asked.priority:
        request.options.priority = asked.priority
    if asked.sequence_id is not None:
        request.options.sequence.id = str(asked.sequence_id)
        request.options.sequence.start, request.options.sequence.end = asked.sequence_start, asked.sequence_end
    elif asked.sequence_start or asked.sequence_end:
        raise _bad("sequence_id", "a request that starts or ends a sequence needs the sequence's id")
    for name, value in asked.parameters.items():
        request.options.parameters[name].CopyFrom(_parameter(name, value))
    return request


def result(response: contract.InferResponse) -> Result:
    """The answer. Raises Internal BAD_OUTPUT."""
    try:
        outputs = {tensor.name: to_array(tensor) for tensor in response.outputs}
    except TensorError as error:
        raise Internal(
            f"the mesh answered with a damaged tensor: {error}",
            reason="BAD_OUTPUT",
            metadata={"function": response.function, "trace_id": response.trace_id},
        ) from None
    return Result(
        outputs=outputs,
        timings=convert.timings(response.timings),
        trace_id=response.trace_id,
        request_id=response.request_id,
        function=response.function,
        version=response.version,
        node=response.node_id,
        device=response.device,
    )


def _parameter(name: str, value: Parameter) -> contract.Parameter:
    if isinstance(value, bool):
        return contract.Parameter(bool_value=value)
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            return contract.Parameter(int64_value=value)
        if 0 <= value < 1 << 64:
            return contract.Parameter(uint64_value=value)
        raise _bad(name, f"{value} has more than 64 bits")
    if isinstance(value, float):
        return contract.Parameter(double_value=value)
    if isinstance(value, str):
        return contract.Parameter(string_value=value)
    raise _bad(name, f"want a truth value, a number or a string, got {type(value).__name__}")


def _bad(name: str, text: str) -> InvalidArgument:
    return InvalidArgument(f"parameter {name}: {text}", reason="BAD_PARAMETER", metadata={"parameter": name})
