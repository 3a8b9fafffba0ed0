"""The Open Inference Protocol's ModelInfer, from bytes to a Call and from an Answer to bytes."""

from __future__ import annotations

import array
import sys
from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError

from rouse_common.errors import InvalidArgument, Unimplemented
from rouse_contracts import inference
from rouse_contracts.tensors import DATATYPES, join_bytes
from rouse_contracts.wire import Buffer, split
from rouse_gateway import wire
from rouse_gateway.dispatch import Answer
from rouse_gateway.wire import TensorView

TRACE_PARAMETER = "rouse_trace_id"
TIMEOUT_PARAMETER = "timeout"
# Reserved parameters that would change what is computed, so ignoring them would be a wrong answer.
UNSUPPORTED_REQUEST = {
    "sequence_id": "sequences are not served; send every request complete, without sequence_id",
    "priority": "priorities are not served; give urgent requests a shorter deadline",
}
SHARED_MEMORY = "shared memory regions are not served; send the tensors in raw_input_contents"
UNSUPPORTED_INPUT = {"shared_memory_region": SHARED_MEMORY}
UNSUPPORTED_OUTPUT = {
    "shared_memory_region": SHARED_MEMORY,
    "classification": "the classification extension is not served; take the largest of the output yourself",
}
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


def read_inputs(request: Message, raw: Sequence[memoryview]) -> list[TensorView]:
    """The input tensors, whichever way they came. Raises InvalidArgument, Unimplemented."""
    name = request.model_name
    if raw and len(raw) != len(request.inputs):
        raise InvalidArgument(
            "BAD_CONTENTS",
            f"request for model '{name}' has {len(request.inputs)} inputs and {len(raw)} raw_input_contents; "
            "each input needs one, in the same order",
            function=name,
        )
    tensors = []
    for position, tensor in enumerate(request.inputs):
        _refuse_unsupported(name, f"input '{tensor.name}'", tensor.parameters, UNSUPPORTED_INPUT)
        typed = tensor.HasField("contents") and tensor.contents.ByteSize() > 0
        if raw and typed:
            raise InvalidArgument(
                "BAD_CONTENTS",
                f"input '{tensor.name}' of model '{name}' has contents beside raw_input_contents; send one of them",
                function=name,
                tensor=tensor.name,
            )
        data = raw[position] if raw else _typed_bytes(name, tensor)
        tensors.append(TensorView(tensor.name, tensor.datatype, tuple(tensor.shape), data))
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
    values = getattr(tensor.contents, field)
    if not code:
        return join_bytes(values)
    try:
        packed = array.array(code, values)
    except OverflowError:
        raise bad(f"a value is out of the range of {tensor.datatype}") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def read_outputs(request: Message) -> list[str]:
    """Names of the requested outputs. Raises Unimplemented."""
    for output in request.outputs:
        _refuse_unsupported(request.model_name, f"output '{output.name}'", output.parameters, UNSUPPORTED_OUTPUT)
    return [output.name for output in request.outputs]


def read_timeout(request: Message) -> float | None:
    """The `timeout` parameter in seconds; None where there is none. Raises InvalidArgument, Unimplemented."""
    if not request.parameters:
        return None
    _refuse_unsupported(request.model_name, "the request", request.parameters, UNSUPPORTED_REQUEST)
    if TIMEOUT_PARAMETER not in request.parameters:
        return None
    parameter = request.parameters[TIMEOUT_PARAMETER]
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in ("int64_param", "uint64_param"):
        raise InvalidArgument(
            "BAD_TIMEOUT",
            f"parameter timeout of the request for model '{request.model_name}': want whole microseconds, got {kind}",
            function=request.model_name,
        )
    microseconds = getattr(parameter, kind)
    if microseconds < 0:
        raise InvalidArgument(
            "BAD_TIMEOUT",
            f"parameter timeout of the request for model '{request.model_name}': want 0 or more microseconds, "
            f"got {microseconds}",
            function=request.model_name,
        )
    return microseconds / 1e6 if microseconds else None


def _refuse_unsupported(
    model: str, where: str, parameters: Mapping[str, inference.InferParameter], table: dict[str, str]
) -> None:
    for key, advice in table.items():
        if key in parameters:
            parameter = parameters[key]
            kind = parameter.WhichOneof("parameter_choice")
            # Zero and empty mean "none", as the protocol has it.
            if kind is not None and getattr(parameter, kind):
                raise Unimplemented(
                    "UNSUPPORTED_PARAMETER",
                    f"{where} of model '{model}' sets {key}: {advice}",
                    function=model,
                    parameter=key,
                )


def write_response(answer: Answer, request_id: str, trace_id: str) -> bytes:
    """A serialised ModelInferResponse, its tensors as raw contents in the order of the outputs."""
    response = inference.ModelInferResponse(
        model_name=answer.version.function, model_version=answer.version.number, id=request_id
    )
    if trace_id:
        response.parameters[TRACE_PARAMETER].string_param = trace_id
    parts: list[Buffer] = [b""]
    for tensor in answer.outputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        parts += wire.bytes_field(RAW_OUTPUTS, [tensor.data])
    parts[0] = response.SerializeToString()
    return b"".join(parts)
