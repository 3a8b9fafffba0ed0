"""The Open Inference Protocol over gRPC: inferences from bytes to a Request, and from a Reply to bytes."""

from __future__ import annotations

import array
import sys
from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError

from rouse_common.errors import InvalidArgument, RouseError
from rouse_contracts import inference
from rouse_contracts.tensors import DATATYPES, join_bytes
from rouse_contracts.wire import Buffer, split
from rouse_gateway import wire
from rouse_gateway.oip import parameters
from rouse_gateway.oip.parameters import Value
from rouse_gateway.oip.requests import (
    OFFSET,
    REGION,
    SIZE,
    Place,
    PlacedTensor,
    Reply,
    Request,
    read_place,
    read_wanted,
)
from rouse_gateway.wire import TensorView

TRACE_PARAMETER = "rouse_trace_id"
FINAL_PARAMETER = "triton_final_response"
# Of errors within a stream, which have no status of their own.
REASON_PARAMETER, STATUS_PARAMETER, RETRY_PARAMETER = "rouse_reason", "rouse_status", "rouse_retry_after_s"
# Typed contents: the field that holds a datatype, and the type code of module array for its elements.
TYPED = {
    "BOOL": ("bool_contents", "B"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
    "BYTES": ("bytes_contents", ""),
}
RAW_CONTENTS = inference.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
RAW_OUTPUTS = inference.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
STREAMED = inference.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER

Message = inference.ModelInferRequest


def split_request(data: bytes) -> tuple[Message, list[memoryview]]:
    """A ModelInferRequest without its raw contents, and views of these. Raises InvalidArgument."""
    try:
        head, raw = split(data, RAW_CONTENTS)
        return Message.FromString(bytes(head)), raw
    except DecodeError as error:
        raise InvalidArgument(
            "MALFORMED_REQUEST",
            f"the request is no inference.ModelInferRequest: {error}; is the client's contract ours?",
        ) from None


def is_heavy(request: Message) -> bool:
    """Whether typed contents are so many that converting them would hold the event loop up."""
    return request.ByteSize() > 16 << 10


def values(given: Mapping[str, inference.InferParameter]) -> dict[str, Value]:
    """Parameters by name; one without a value is none."""
    found: dict[str, Value] = {}
    for name, parameter in given.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is not None:
            found[name] = getattr(parameter, kind)
    return found


def read_request(message: Message, raw: Sequence[memoryview]) -> Request:
    """The request that a message and its raw contents are. Raises InvalidArgument."""
    model = message.model_name
    given = parameters.read(model, values(message.parameters)) if message.parameters else parameters.NONE
    inputs = read_inputs(message, raw)
    outputs = [read_wanted(model, output.name, values(output.parameters)) for output in message.outputs]
    return Request(model, message.model_version, message.id, inputs, outputs, given)


def read_inputs(request: Message, raw: Sequence[memoryview]) -> list[TensorView | PlacedTensor]:
    """The input tensors, whichever way they came. Raises InvalidArgument."""
    name = request.model_name
    places: list[Place | None] = [
        read_place(name, tensor.name, values(tensor.parameters)) if tensor.parameters else None
        for tensor in request.inputs
    ]
    sent = sum(place is None for place in places)
    if raw and len(raw) != sent:
        raise InvalidArgument(
            "BAD_CONTENTS",
            f"request for model '{name}' has {sent} inputs and {len(raw)} raw_input_contents; "
            "each input that is not in shared memory needs one, in the same order",
            function=name,
        )
    tensors: list[TensorView | PlacedTensor] = []
    left = iter(raw)
    for tensor, place in zip(request.inputs, places, strict=True):
        typed = tensor.HasField("contents") and tensor.contents.ByteSize() > 0
        if typed and (raw or place is not None):
            beside = f"region '{place.region[:80]}'" if place is not None else "raw_input_contents"
            raise InvalidArgument(
                "BAD_CONTENTS",
                f"input '{tensor.name}' of model '{name}' has contents beside {beside}; send one of them",
                function=name,
                tensor=tensor.name,
            )
        shape = tuple(tensor.shape)
        if place is not None:
            tensors.append(PlacedTensor(tensor.name, tensor.datatype, shape, place))
        else:
            data = next(left) if raw else _typed_bytes(name, tensor)
            tensors.append(TensorView(tensor.name, tensor.datatype, shape, data))
    return tensors


def _typed_bytes(model: str, tensor: inference.ModelInferRequest.InferInputTensor) -> bytes:
    """Typed contents as raw ones. Raises InvalidArgument where the field does not fit the datatype, or a
    value does not fit into it."""

    def bad(text: str) -> InvalidArgument:
        return InvalidArgument(
            "BAD_CONTENTS", f"input '{tensor.name}' of model '{model}': {text}", function=model, tensor=tensor.name
        )

    given = [field.name for field, _ in tensor.contents.ListFields()]
    if not given:
        return b""
    if tensor.datatype not in TYPED:
        if tensor.datatype in DATATYPES:
            raise bad(f"datatype {tensor.datatype} has no typed contents; send raw_input_contents")
        return b""  # no datatype at all: the check against the signature says so
    field, code = TYPED[tensor.datatype]
    if given != [field]:
        raise bad(f"datatype {tensor.datatype} travels in {field}, the request has {', '.join(given)}")
    elements = getattr(tensor.contents, field)
    if not code:
        return join_bytes(elements)
    try:
        packed = array.array(code, elements)
    except OverflowError:
        raise bad(f"a value is out of the range of {tensor.datatype}") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def write_response(reply: Reply, request_id: str, trace_id: str, *, final: bool | None = None) -> list[Buffer]:
    """Parts of a serialised ModelInferResponse, its tensors as raw contents in the order of the outputs; an
    output in shared memory has empty ones.

    Args:
        final: of a response in a stream, whether it is the request's last one.
    """
    version = reply.answer.version
    response = inference.ModelInferResponse(model_name=version.function, model_version=version.number, id=request_id)
    if trace_id:
        response.parameters[TRACE_PARAMETER].string_param = trace_id
    if final is not None:
        response.parameters[FINAL_PARAMETER].bool_param = final
    parts: list[Buffer] = [b""]
    for tensor in reply.outputs:
        output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if tensor.name in reply.placed:
            place = reply.placed[tensor.name]
            output.parameters[REGION].string_param = place.region
            output.parameters[OFFSET].int64_param = place.offset
            output.parameters[SIZE].int64_param = place.size
        parts += wire.bytes_field(RAW_OUTPUTS, [tensor.data])
    parts[0] = response.SerializeToString()
    return parts


def streamed(response: list[Buffer]) -> bytes:
    """A serialised ModelStreamInferResponse with a response."""
    return b"".join(wire.bytes_field(STREAMED, response))


def write_final(request: Request, version: str, trace_id: str) -> bytes:
    """A serialised ModelStreamInferResponse that says that a request has no further responses."""
    response = inference.ModelInferResponse(model_name=request.model, model_version=version, id=request.id)
    response.parameters[FINAL_PARAMETER].bool_param = True
    if trace_id:
        response.parameters[TRACE_PARAMETER].string_param = trace_id
    return streamed([response.SerializeToString()])


def write_error(error: RouseError, request_id: str, model: str) -> bytes:
    """A serialised ModelStreamInferResponse with an error, which is the request's last response."""
    response = inference.ModelInferResponse(model_name=model, id=request_id)
    given = response.parameters
    given[FINAL_PARAMETER].bool_param = True
    given[REASON_PARAMETER].string_param = error.reason
    given[STATUS_PARAMETER].string_param = error.code.name
    if error.retry_after_s is not None:
        given[RETRY_PARAMETER].double_param = error.retry_after_s
    if error.metadata.get("trace_id"):
        given[TRACE_PARAMETER].string_param = error.metadata["trace_id"]
    message = error.message or error.code.name
    return inference.ModelStreamInferResponse(error_message=message, infer_response=response).SerializeToString()
