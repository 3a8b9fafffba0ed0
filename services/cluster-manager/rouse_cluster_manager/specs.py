"""What a function's spec may be, and what it is once defaults are filled in."""

from __future__ import annotations

import re

from rouse_common.errors import InvalidArgument, Unimplemented
from rouse_contracts import functions
from rouse_contracts.repository import Artefact
from rouse_contracts.specs import SpecError, is_redirected
from rouse_contracts.specs import check as check_rules
from rouse_contracts.tensors import DATATYPES
from rouse_store.models import MAX_BYTES, NAME_PATTERN

NAME = re.compile(NAME_PATTERN)
HANDLER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)

DEFAULT_MAX_INSTANCES = 1
DEFAULT_IDLE_TIMEOUT_S = 300
DEFAULT_QUEUE_CAPACITY = 256
DEFAULT_PERCENTILE = 0.98

MAX_INSTANCES = 1000
MAX_IDLE_TIMEOUT_S = 30 * 86_400
MAX_QUEUE_CAPACITY = 100_000
MAX_THREADS = 1024
MAX_TENSORS = 256
MAX_RANK = 32
MAX_TENSOR_NAME_CHARS = 256
MAX_OPTIONS = 256
MAX_TEXT_CHARS = 8192
MAX_HANDLER_CHARS = 256
MAX_LATENCY_MS = 86_400_000


def check_name(name: str) -> None:
    """Raises InvalidArgument BAD_NAME."""
    if not NAME.fullmatch(name):
        shown = name[:140].replace("\x00", " ")
        raise InvalidArgument(
            "BAD_NAME",
            f"'{shown}' is not a name for a function; it takes 1 to 128 letters, digits, '.', '_' and '-' and "
            "begins with a letter or digit",
        )


def effective(spec: functions.FunctionSpec, artefact: Artefact) -> functions.FunctionSpec:
    """The spec with defaults and the signature that holds. Raises InvalidArgument BAD_NAME | BAD_SPEC."""
    check_name(spec.name)
    full = functions.FunctionSpec()
    full.CopyFrom(spec)
    _check_handler(full, artefact)
    if not full.signature.inputs and not full.signature.outputs:
        full.signature.CopyFrom(artefact.signature)
    _check_signature(full)
    _check_texts(full)
    try:
        check_rules(full)
    except SpecError as error:
        raise _bad(full, str(error)) from None
    _fill_scaling(full)
    _check_resources(full)
    _fill_objective(full)
    _fill_execution(full)
    full.queue_capacity = full.queue_capacity or DEFAULT_QUEUE_CAPACITY
    _within(full, "queue_capacity", full.queue_capacity, 1, MAX_QUEUE_CAPACITY)
    return full


def check_execution(spec: functions.FunctionSpec, executors: bool) -> None:
    """Raises Unimplemented EXECUTION_UNAVAILABLE where no node could carry the function out.

    Args:
        executors: whether the nodes have native executors.
    """
    if is_redirected(spec) and not executors:
        raise Unimplemented(
            "EXECUTION_UNAVAILABLE",
            f"function '{spec.name}' asks for execution = 'rouse', and the nodes of this mesh have no executors "
            "(`rouse up --executors`; settings `executors` of cluster-manager and gpu-server); leave it out, or say "
            "execution = 'plain'",
            function=spec.name,
        )


def _bad(spec: functions.FunctionSpec, text: str) -> InvalidArgument:
    return InvalidArgument("BAD_SPEC", f"function '{spec.name}': {text}", function=spec.name)


def _within(spec: functions.FunctionSpec, what: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise _bad(spec, f"{what} is {value:g}, want {low:g} to {high:g}")


def _check_handler(spec: functions.FunctionSpec, artefact: Artefact) -> None:
    if artefact.format == functions.ARTEFACT_FORMAT_PYTHON:
        if len(spec.handler) > MAX_HANDLER_CHARS or not HANDLER.fullmatch(spec.handler):
            raise _bad(spec, f'handler is \'{spec.handler[:100]}\', want "module:Class" as in handler = "main:Model"')
    elif spec.handler:
        raise _bad(spec, "a Hugging Face directory takes no handler; leave it out")


def _check_signature(spec: functions.FunctionSpec) -> None:
    for what, tensors in (("inputs", spec.signature.inputs), ("outputs", spec.signature.outputs)):
        if not tensors:
            raise _bad(spec, f"the signature has no {what}; give [[{what}]] with name, datatype and shape")
        if len(tensors) > MAX_TENSORS:
            raise _bad(spec, f"{len(tensors)} {what}, {MAX_TENSORS} at most")
        names = [tensor.name for tensor in tensors]
        if len(set(names)) != len(names):
            raise _bad(spec, f"two {what} have the same name")
        for tensor in tensors:
            _check_tensor(spec, what, tensor)


def _check_tensor(spec: functions.FunctionSpec, what: str, tensor: functions.TensorSpec) -> None:
    if not tensor.name or len(tensor.name) > MAX_TENSOR_NAME_CHARS or "\x00" in tensor.name:
        raise _bad(spec, f"one of the {what} has a name that is empty, too long or holds a NUL character")
    if tensor.datatype not in DATATYPES:
        known = ", ".join(sorted(DATATYPES))
        raise _bad(spec, f"'{tensor.name}' of the {what} has the datatype '{tensor.datatype[:20]}'; known: {known}")
    if len(tensor.shape) > MAX_RANK:
        raise _bad(spec, f"'{tensor.name}' of the {what} has {len(tensor.shape)} dimensions, {MAX_RANK} at most")
    if any(size < -1 for size in tensor.shape):
        raise _bad(spec, f"'{tensor.name}' of the {what} has the shape {list(tensor.shape)}; want sizes, or -1 for any")


def _check_texts(spec: functions.FunctionSpec) -> None:
    if len(spec.options) > MAX_OPTIONS:
        raise _bad(spec, f"{len(spec.options)} options, {MAX_OPTIONS} at most")
    texts = {"the description": spec.description}
    for key, value in spec.options.items():
        texts[f"option '{key[:40]}'"] = value
        texts[f"the name of option '{key[:40]}'"] = key
    for what, text in texts.items():
        if len(text) > MAX_TEXT_CHARS or "\x00" in text:
            raise _bad(spec, f"{what} is longer than {MAX_TEXT_CHARS} characters or holds a NUL character")


def _fill_scaling(spec: functions.FunctionSpec) -> None:
    scaling = spec.scaling
    if spec.pinned:
        # Its weights are mapped for an instance.
        scaling.min_instances = max(1, scaling.min_instances)
    scaling.max_instances = scaling.max_instances or max(DEFAULT_MAX_INSTANCES, scaling.min_instances)
    _within(spec, "max_instances", scaling.max_instances, 1, MAX_INSTANCES)
    _within(spec, "min_instances", scaling.min_instances, 0, scaling.max_instances)
    idle_s = scaling.idle_timeout.seconds + scaling.idle_timeout.nanos / 1e9
    if idle_s == 0:
        scaling.idle_timeout.FromSeconds(DEFAULT_IDLE_TIMEOUT_S)
    else:
        _within(spec, "idle_timeout, in seconds,", idle_s, 0.001, MAX_IDLE_TIMEOUT_S)


def _check_resources(spec: functions.FunctionSpec) -> None:
    _within(spec, "working_memory_bytes", spec.resources.working_memory_bytes, 0, MAX_BYTES)
    _within(spec, "host_memory_limit_bytes", spec.resources.host_memory_limit_bytes, 0, MAX_BYTES)
    _within(spec, "threads", spec.resources.threads, 0, MAX_THREADS)


def _fill_execution(spec: functions.FunctionSpec) -> None:
    spec.execution = spec.execution or functions.EXECUTION_PLAIN
    if is_redirected(spec):
        spec.isolation = spec.isolation or functions.EXECUTOR_ISOLATION_SHARING


def _fill_objective(spec: functions.FunctionSpec) -> None:
    objective = spec.objective
    if not objective.latency_ms:
        if objective.percentile:
            raise _bad(spec, "the objective has a percentile but no latency_ms")
        return
    _within(spec, "the objective's latency_ms", objective.latency_ms, 1, MAX_LATENCY_MS)
    objective.percentile = objective.percentile or DEFAULT_PERCENTILE
    if not 0 < objective.percentile < 1:
        raise _bad(spec, f"the objective's percentile is {objective.percentile:g}, want more than 0 and less than 1")
