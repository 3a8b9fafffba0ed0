"""What makes a request valid for a version of a function."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rouse_common.errors import InvalidArgument
from rouse_contracts.tensors import TensorError, check_data, check_signature
from rouse_gateway.state import Version
from rouse_gateway.wire import TensorView

# Larger BYTES tensors take long to walk through, element by element.
WALK_BYTES = 8 << 10
MAX_NAMES_SHOWN = 20


async def check_request(version: Version, inputs: Sequence[TensorView], output_names: Sequence[str]) -> None:
    """Checks the tensors of a request against the signature, and against themselves.

    Raises InvalidArgument with the reason UNKNOWN_INPUT, DUPLICATE_INPUT, MISSING_INPUT, BAD_TENSOR,
    UNKNOWN_OUTPUT or DUPLICATE_OUTPUT; its metadata names function and tensor.
    """
    check_names(version, inputs, output_names)
    for tensor in inputs:
        want_datatype, want_shape = version.inputs[tensor.name]
        try:
            check_signature(tensor.name, tensor.datatype, tensor.shape, want_datatype, want_shape)
            if tensor.datatype == "BYTES" and len(tensor.data) > WALK_BYTES:
                await asyncio.to_thread(check_data, tensor.name, tensor.datatype, tensor.shape, tensor.data)
            else:
                check_data(tensor.name, tensor.datatype, tensor.shape, tensor.data)
        except TensorError as error:
            raise InvalidArgument(
                "BAD_TENSOR",
                f"{error}; function '{version.function}'",
                function=version.function,
                tensor=tensor.name,
            ) from None


def check_names(version: Version, inputs: Sequence[TensorView], output_names: Sequence[str]) -> None:
    """Checks that every input is there once, and that requested outputs exist. Raises InvalidArgument."""
    function = version.function
    seen: set[str] = set()
    for tensor in inputs:
        name = tensor.name
        if name not in version.inputs:
            raise InvalidArgument(
                "UNKNOWN_INPUT",
                f"function '{function}' has no input '{name[:80]}'; it takes {_names(list(version.inputs))}",
                function=function,
                tensor=name[:80],
            )
        if name in seen:
            raise InvalidArgument(
                "DUPLICATE_INPUT",
                f"input '{name}' of function '{function}' is given twice",
                function=function,
                tensor=name,
            )
        seen.add(name)
    if len(seen) < len(version.inputs):
        missing = [name for name in version.inputs if name not in seen]
        raise InvalidArgument(
            "MISSING_INPUT",
            f"function '{function}' needs the input {_names(missing)}, which the request does not give",
            function=function,
            tensor=missing[0],
        )
    asked: set[str] = set()
    for name in output_names:
        if name not in version.outputs:
            raise InvalidArgument(
                "UNKNOWN_OUTPUT",
                f"function '{function}' has no output '{name[:80]}'; it gives {_names(version.outputs)}",
                function=function,
                tensor=name[:80],
            )
        if name in asked:
            raise InvalidArgument(
                "DUPLICATE_OUTPUT",
                f"output '{name}' of function '{function}' is requested twice",
                function=function,
                tensor=name,
            )
        asked.add(name)


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:MAX_NAMES_SHOWN])
    return shown + (f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else "") or "none"


def count_rows(version: Version, inputs: Sequence[TensorView]) -> int:
    """The rows of a request: the first dimension of its inputs; 0 where the function is not batchable.

    Raises InvalidArgument BAD_BATCH where the inputs do not agree, or where there are no rows or too many.
    """
    most = version.max_batch_size
    if most <= 1 or not inputs:
        return 0
    first = inputs[0]
    rows = first.shape[0] if first.shape else 0
    for tensor in inputs:
        if not tensor.shape or tensor.shape[0] != rows:
            raise InvalidArgument(
                "BAD_BATCH",
                f"the inputs of function '{version.function}' have different numbers of rows: '{first.name}' has shape "
                f"{list(first.shape)}, '{tensor.name}' has {list(tensor.shape)}; the first dimension is the batch",
                function=version.function,
                tensor=tensor.name,
            )
    if not 1 <= rows <= most:
        raise InvalidArgument(
            "BAD_BATCH",
            f"a request for function '{version.function}' with {rows} rows; it takes 1 to {most}",
            function=version.function,
            tensor=first.name,
        )
    return rows
