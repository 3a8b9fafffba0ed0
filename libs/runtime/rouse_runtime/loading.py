"""Loading a function: its weights mapped, its libraries imported, its own code run for the first time."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from pathlib import Path

from rouse_contracts.coordination import GetAssignmentResponse
from rouse_contracts.functions import ArtefactFormat
from rouse_contracts.specs import is_redirected
from rouse_runtime.confinement import prepare, set_environment
from rouse_runtime.failures import LoadError, describe
from rouse_runtime.handlers import Handler, Source, load_handler
from rouse_runtime.limits import limit_memory
from rouse_runtime.redirected import Redirected, native_device
from rouse_runtime.weights import SizeMismatch, WeightsRange

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """A function that is ready to serve."""

    assignment: GetAssignmentResponse
    handler: Handler
    weights: WeightsRange


def load(assignment: GetAssignmentResponse, memory_limit_bytes: int) -> Loaded | str:
    """The loaded function, or in one line why it cannot be loaded. To be called in the thread that will serve.

    Args:
        memory_limit_bytes: what the function may allocate where its spec has no limit; 0: no limit.
    """
    folder = assignment.artefact_path
    try:
        return _load(assignment, memory_limit_bytes)
    except BaseException as error:  # user code may raise anything, SystemExit as well
        if not isinstance(error, LoadError):
            LOG.warning("load raised", exc_info=error)
        return describe(error, folder)


def _load(assignment: GetAssignmentResponse, memory_limit_bytes: int) -> Loaded:
    set_environment(assignment.environment)  # before any code of the user is imported
    weights = _reserve(assignment)
    if weights.image_bytes:
        weights.map_private(assignment.image_path)
    _import_for(assignment)
    if is_redirected(assignment.version.spec):
        importlib.import_module("torch")
    limit_memory(assignment.version.spec.resources.host_memory_limit_bytes or memory_limit_bytes)
    if is_redirected(assignment.version.spec) and not assignment.version.HasField("addresses"):
        raise LoadError("execution = 'rouse' needs addresses, which only a mesh gives; say execution = 'plain' here")
    source = Source(assignment.version, assignment.artefact, Path(assignment.artefact_path), weights)
    handler = load_handler(source)
    written = weights.written_bytes()
    if written:
        raise LoadError(
            f"load() wrote to {written} bytes of the mapped weights; they are read-only, "
            "make a copy of what has to change, as with tensor.clone()"
        )
    weights.detach()
    if not is_redirected(assignment.version.spec) or not weights.image_bytes:  # without weights there is no device
        return Loaded(assignment, handler, weights)
    layout = assignment.artefact.layout.tensors
    redirected = Redirected(handler, weights, layout, native_device(), assignment.version.spec)
    return Loaded(assignment, redirected, weights)


def _reserve(assignment: GetAssignmentResponse) -> WeightsRange:
    """The range of the weights, at the addresses that the control plane gave them. Raises WeightsError."""
    version, image_bytes = assignment.version, assignment.artefact.layout.image_bytes
    if not version.HasField("addresses"):
        return WeightsRange(image_bytes)
    if image_bytes > version.addresses.weights_bytes:
        raise SizeMismatch(
            f"the weights have {image_bytes} bytes, the addresses of artefact {version.artefact_digest[:12]} are for "
            f"{version.addresses.weights_bytes}; deploy the function again"
        )
    return WeightsRange(image_bytes, version.addresses.base)


def _import_for(assignment: GetAssignmentResponse) -> None:
    """Imports the libraries that Rouse itself needs for a function."""
    importlib.import_module("rouse_runtime.arrays")
    if assignment.artefact.layout.image_bytes:
        importlib.import_module("torch")
    prepare(ArtefactFormat.Name(assignment.version.format).removeprefix("ARTEFACT_FORMAT_"))
