"""Parameters of an inference that the protocol reserves, as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rouse_common.errors import Unimplemented
from rouse_gateway.http.errors import bad_request
from rouse_gateway.http.infer import Inference
from rouse_gateway.http.messages import Request
from rouse_gateway.http.timeouts import header_timeout
from rouse_gateway.oip.parameters import TIMEOUT

# Reserved parameters that would change what is computed, so ignoring them would be a wrong answer.
UNSUPPORTED_REQUEST = {
    "sequence_id": "sequences are not served over HTTP; send every request complete, without sequence_id",
    "priority": "priorities are not served over HTTP; give urgent requests a shorter deadline",
}
SHARED_MEMORY = "shared memory regions are not served over HTTP; send the tensors in the request"
UNSUPPORTED_INPUT = {"shared_memory_region": SHARED_MEMORY}
UNSUPPORTED_OUTPUT = {
    "shared_memory_region": SHARED_MEMORY,
    "classification": "the classification extension is not served over HTTP; take the largest of the output yourself",
}
MAX_MICROSECONDS = (1 << 63) - 1


def timeout_of(request: Request, model: str, parameters: Mapping[str, Any], default_s: float) -> float:
    """The shortest time that parameter and headers give the request, in seconds; `default_s` where none does.
    Raises InvalidArgument BAD_TIMEOUT."""
    shortest = header_timeout(request)
    value = parameters.get(TIMEOUT)
    if value is not None:
        if type(value) is not int or not 0 <= value <= MAX_MICROSECONDS:
            raise bad_request(
                f"parameter timeout of the request for model '{model}': want 0 or more whole microseconds",
                "BAD_TIMEOUT",
                function=model,
            )
        if value:  # 0 means none, as the protocol has it
            shortest = min(shortest, value / 1e6)
    return default_s if math.isinf(shortest) else shortest


def refuse_unsupported(model: str, inference: Inference) -> None:
    """Refuses reserved parameters that would change what is computed. Raises Unimplemented."""
    _refuse(model, "the request", inference.parameters, UNSUPPORTED_REQUEST)
    for tensor, parameters in zip(inference.inputs, inference.input_parameters, strict=True):
        _refuse(model, f"input '{tensor.name[:80]}'", parameters, UNSUPPORTED_INPUT)
    for output in inference.outputs:
        _refuse(model, f"output '{output.name[:80]}'", output.parameters, UNSUPPORTED_OUTPUT)


def _refuse(model: str, where: str, parameters: Mapping[str, Any], table: Mapping[str, str]) -> None:
    for key, advice in table.items():
        if parameters and parameters.get(key):  # zero and empty mean "none", as the protocol has it
            raise Unimplemented(
                "UNSUPPORTED_PARAMETER", f"{where} of model '{model}' sets {key}: {advice}",
                function=model, parameter=key,
            )  # fmt: skip
