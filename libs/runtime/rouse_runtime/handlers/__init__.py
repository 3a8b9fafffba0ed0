"""How a function is loaded and called, one module a format of artefact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rouse_contracts.functions import ArtefactFormat, FunctionVersion
from rouse_contracts.repository import Artefact
from rouse_runtime.failures import LoadError
from rouse_runtime.request import Request
from rouse_runtime.weights import WeightsRange

if TYPE_CHECKING:
    import torch

HOST_DEVICE = "cpu"


@dataclass(frozen=True)
class Source:
    """What a handler is made from.

    Attributes:
        version, artefact: from the coordinator's assignment.
        folder: the artefact's files, read-only.
        weights: the range with the host copy mapped.
    """

    version: FunctionVersion
    artefact: Artefact
    folder: Path
    weights: WeightsRange


class Handler(Protocol):
    """A loaded function."""

    casts: bool
    """Whether outputs are converted to the signature's datatypes, or have to have them."""

    takes_request: bool
    """Whether the function is given the request, and so may see by itself that it was cancelled."""

    mixes: bool
    """Whether the function's code makes tensors on the host and expects them to meet the weights."""

    takes_tensors: bool
    """Whether its inputs may be tensors of the device that it runs on, in place of arrays."""

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        """Modules that hold the weights; empty where the function uses them in another way, or has none."""
        ...

    def kept(self) -> Mapping[str, Any]:
        """What the function's code holds between requests, by name: each value, and its size where it may change."""
        ...

    def predict(self, inputs: dict[str, Any], request: Request) -> Mapping[str, Any] | Iterator[Any]:
        """One request: arrays in, array-likes out, by name; of a decoupled function an iterator of such.

        Raises whatever the function raises.
        """
        ...


def load_handler(source: Source) -> Handler:
    """Loads a function. Raises LoadError, or whatever the user's code raises."""
    if source.version.format == ArtefactFormat.ARTEFACT_FORMAT_HUGGING_FACE:
        from rouse_runtime.handlers.huggingface import HuggingFaceHandler

        return HuggingFaceHandler(source)
    if source.version.format == ArtefactFormat.ARTEFACT_FORMAT_PYTHON:
        from rouse_runtime.handlers.python import PythonHandler

        return PythonHandler(source)
    if source.version.format == ArtefactFormat.ARTEFACT_FORMAT_TORCH_EXPORT:
        from rouse_runtime.handlers.exported import ExportedHandler

        return ExportedHandler(source)
    raise LoadError(f"artefact format {source.version.format} is not one that this instance can load")
