"""What a Python function is given when it loads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

from rouse_runtime.failures import LoadError
from rouse_runtime.weights import WeightsRange, make_tensors

if TYPE_CHECKING:
    import torch

    from rouse_contracts.repository import WeightTensor

MAX_NAMES = 10


@dataclass(frozen=True)
class BindReport:
    """What `bind` did not bind.

    Attributes:
        missing: names that the module has and the file has not.
        unexpected: names that the file has and the module has not.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


class Context:
    """Given to `load(self, context)`; what it binds stays bound for the life of the instance.

    Attributes:
        options: the function's [options], read-only.
        device: torch device that weights and results live on, as "cpu".
        log: a logger whose lines `rouse logs FUNCTION` shows.
    """

    def __init__(
        self,
        artefact: Path,
        options: Mapping[str, str],
        device: str,
        weights: WeightsRange,
        layout: list[WeightTensor],
    ) -> None:
        self.options: Mapping[str, str] = MappingProxyType(dict(options))
        self.device = device
        self.log = logging.getLogger("function")
        self._artefact = artefact
        self._weights = weights
        self._layout = layout
        self._closed = False
        self._modules: list[torch.nn.Module] = []

    def path(self, name: str) -> Path:
        """The path of a file or folder of the artefact. Do not write there: other instances read it.

        Raises ValueError for a name that leads out of the artefact, FileNotFoundError where there is none.
        """
        parts = PurePosixPath(name)
        if not name or parts.is_absolute() or ".." in parts.parts or "\0" in name:
            raise ValueError(f"context.path({name!r}): want a path relative to the function's folder, without '..'")
        path = self._artefact / parts
        if not path.exists():
            raise FileNotFoundError(f"context.path({name!r}): the function's folder has no such file")
        return path

    def bind(self, module: torch.nn.Module, file: str, strict: bool = True) -> BindReport:
        """Puts a module's parameters and buffers onto the mapped weights of a safetensors file.

        Nothing is copied: the module's own values are dropped, and its tensors are views of the weights that
        Rouse swaps. The module is put into evaluation mode and asks for no gradients. Call it in `load` only.
        Build the module under `with torch.device("meta"):` so that it makes no values that are dropped at once.

        Args:
            module: any torch module.
            file: path of the safetensors file in the function's folder.
            strict: whether names that are on one side only are an error.

        Raises LoadError naming the tensors that are missing, unexpected or of another shape.
        """
        if self._closed:
            raise RuntimeError("context.bind() was called after load() returned; weights are bound in load() only")
        entries = [entry for entry in self._layout if entry.file == file]
        if not entries:
            files = sorted({entry.file for entry in self._layout})
            raise LoadError(f"context.bind: '{file}' is not a safetensors file of this function; it has {files}")
        tensors = dict(make_tensors(self._weights, entries)[file])
        report = bind(module, tensors)
        if strict and (report.missing or report.unexpected):
            raise LoadError(
                f"context.bind: '{file}' does not fit {type(module).__name__}: "
                f"missing in the file: {shorten(report.missing)}; not in the module: {shorten(report.unexpected)}"
            )
        self._modules.append(module)
        return report

    @property
    def modules(self) -> tuple[torch.nn.Module, ...]:
        """What was bound."""
        return tuple(self._modules)

    def close(self) -> None:
        """Ends the time in which weights can be bound."""
        self._closed = True


def bind(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> BindReport:
    """Assigns tensors to a module's parameters and persistent buffers by name, without copying.

    Names of one shared parameter count as one: a file needs to have it once. Raises LoadError.
    """
    import torch

    module.requires_grad_(False)
    module.eval()
    state = module.state_dict(keep_vars=True)
    aliases: dict[int, list[str]] = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            aliases.setdefault(id(value), []).append(name)
    given = dict(tensors)
    for names in aliases.values():
        source = next((name for name in names if name in tensors), None)
        if source is not None:
            given |= {name: tensors[source] for name in names if name not in tensors}
    wrong = [
        f"{name} {list(given[name].shape)} where the module has {list(value.shape)}"
        for name, value in state.items()
        if name in given and isinstance(value, torch.Tensor) and given[name].shape != value.shape
    ]
    if wrong:
        raise LoadError(f"tensors of another shape than {type(module).__name__}'s: {shorten(wrong)}")
    result = module.load_state_dict(given, strict=False, assign=True)
    unbound = [
        name
        for name, value in [*module.named_parameters(), *module.named_buffers()]
        if value.is_meta and name not in result.missing_keys
    ]
    if unbound:
        raise LoadError(
            f"{type(module).__name__} was built on the meta device, and the weights hold no value for its "
            f"{shorten(unbound)}; build that part on a real device"
        )
    return BindReport(tuple(result.missing_keys), tuple(result.unexpected_keys))


def shorten(names: list[str] | tuple[str, ...]) -> str:
    """The first names of a list, and how many there are beside them."""
    if not names:
        return "none"
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
