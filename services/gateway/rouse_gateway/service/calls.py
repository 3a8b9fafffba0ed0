"""Inferences of rouse.functions.v1, from bytes to a Call and from an Answer to bytes."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from rouse_common.errors import InvalidArgument
from rouse_common.telemetry import current_trace_id
from rouse_contracts import functions
from rouse_contracts.wire import Buffer, split
from rouse_gateway import wire
from rouse_gateway.asked import Answer, Call
from rouse_gateway.oip.parameters import check_options

INPUTS = functions.InferRequest.INPUTS_FIELD_NUMBER
OUTPUTS = functions.InferResponse.OUTPUTS_FIELD_NUMBER
STREAMED_REQUEST = functions.InferStreamRequest.REQUEST_FIELD_NUMBER
STREAMED_RESPONSE = functions.InferStreamResponse.RESPONSE_FIELD_NUMBER


def read_call(data: Buffer, timeout_s: float) -> tuple[Call, str]:
    """A serialised InferRequest as a Call, and the id that the client gave it. Raises InvalidArgument."""
    try:
        head, tensors = split(data, INPUTS)
        request = functions.InferRequest.FromString(bytes(head))
        inputs = [wire.parse_tensor(tensor) for tensor in tensors]
    except DecodeError as error:
        raise InvalidArgument(
            "MALFORMED_REQUEST",
            f"the request is no rouse.functions.v1.InferRequest: {error}; is the client's contract ours?",
        ) from None
    options = request.options if request.HasField("options") else None
    if options is not None:
        check_options(request.function, options)
    call = Call(
        request.function,
        request.version,
        inputs,
        request.output_names,
        timeout_s,
        options=options,
        idempotency_key=request.idempotency_key or request.request_id,
    )
    return call, request.request_id


def read_streamed(data: bytes) -> Buffer:
    """The InferRequest within a serialised InferStreamRequest. Raises InvalidArgument."""
    try:
        requests = split(data, STREAMED_REQUEST)[1]
    except DecodeError as error:
        raise InvalidArgument(
            "MALFORMED_REQUEST",
            f"the request is no rouse.functions.v1.InferStreamRequest: {error}; is the client's contract ours?",
        ) from None
    return requests[-1] if requests else b""


def write_response(answer: Answer, request_id: str) -> list[Buffer]:
    """Parts of a serialised InferResponse."""
    head = functions.InferResponse(
        request_id=request_id or answer.request_id,
        function=answer.version.function,
        version=answer.version.number,
        timings=answer.timings,
        trace_id=current_trace_id(),
        node_id=answer.node_id,
        device=answer.device,
    ).SerializeToString()
    return [head, *wire.tensor_parts(answer.outputs, OUTPUTS)]


def write_streamed(answer: Answer, request_id: str) -> bytes:
    """A serialised InferStreamResponse."""
    return b"".join(wire.bytes_field(STREAMED_RESPONSE, write_response(answer, request_id)))
