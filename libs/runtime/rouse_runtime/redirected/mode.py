"""Host tensors that meet tensors of the device are brought there, as a function that knows only one device expects.

Functions make tensors out of their inputs (`torch.from_numpy`), keep constants from `load`, read results as numpy
arrays. In one process all of that is one device. Here operations between the two are decided once, in one place: what
is computed is computed on the device; what is written into a host tensor is brought to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from rouse_runtime.redirected.placing import Names

# They have a device of their own to go to, or ask for no values.
OWN_WAY: frozenset[Any] = frozenset({
    torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.copy_, torch.Tensor.type, torch.Tensor.set_, torch.is_tensor,
    torch.Tensor.data_ptr, torch.Tensor.is_contiguous,
})  # fmt: skip
TO_NUMPY: tuple[Any, ...] = (torch.Tensor.numpy, torch.Tensor.__array__)
MAX_DEPTH = 4


class Meeting(TorchFunctionMode):
    """The mode. Zero-dimensional host tensors stay: every device takes them as numbers.

    Args:
        device: its name.
        names: what weights, and inputs, are called there.
    """

    def __init__(self, device: str, names: Names) -> None:
        super().__init__()
        self._device, self._names = device, names

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if function in TO_NUMPY and args and self._is_there(args[0]):
            return function(self._names.on_device(args[0]).cpu(), *args[1:], **given)
        if function in OWN_WAY:
            if args and isinstance(args[0], torch.Tensor) and self._names.is_known(args[0]):
                args = (self._names.on_device(args[0]), *args[1:])
            return function(*args, **given)
        there = here = False
        for tensor in tensors(args, given):
            if self._is_there(tensor):
                there = there or tensor.dim() > 0 or tensor.device.type == self._device
            elif tensor.dim() > 0:
                here = True
        if not there:
            return function(*args, **given)
        written = _written(function, args, given)
        if here and written is not None and not self._is_there(written):
            return function(*_mapped(self._to_host, args), **_mapped(self._to_host, given))
        return function(*_mapped(self._to_device, args), **_mapped(self._to_device, given))

    def _is_there(self, tensor: Any) -> bool:
        return isinstance(tensor, torch.Tensor) and (tensor.device.type == self._device or self._names.is_known(tensor))

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == self._device or (tensor.dim() == 0 and not self._names.is_known(tensor)):
            return tensor
        return self._names.on_device(tensor) if tensor.device.type == "cpu" else tensor

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._names.on_device(tensor).cpu() if self._is_there(tensor) else tensor


def tensors(*values: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in arguments, also in lists, tuples and dicts, a few levels deep."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)) and depth < MAX_DEPTH:
            yield from tensors(*value, depth=depth + 1)
        elif isinstance(value, Mapping) and depth < MAX_DEPTH:
            yield from tensors(*value.values(), depth=depth + 1)


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], value: Any, depth: int = 0) -> Any:
    """The same with its tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if depth > MAX_DEPTH or not isinstance(value, (list, tuple, dict)):
        return value
    if isinstance(value, dict):
        return {key: _mapped(change, entry, depth + 1) for key, entry in value.items()}
    changed = [_mapped(change, entry, depth + 1) for entry in value]
    if isinstance(value, list):
        return changed
    return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)


def _written(function: Callable[..., Any], args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
    """The tensor that a call writes to, None where it makes a new one."""
    out = given.get("out")
    if out is not None:
        return out[0] if isinstance(out, (list, tuple)) and out else out
    name = getattr(function, "__name__", "")
    in_place = name == "__setitem__" or (name.startswith("__i") and name not in ("__index__", "__int__", "__invert__"))
    in_place = in_place or (name.endswith("_") and not name.endswith("__"))
    return args[0] if in_place and args else None
