"""Modules whose tensors are on the executor's device for as long as a session lasts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rouse_runtime.redirected.device import Device
from rouse_runtime.weights import DTYPES, WeightsError, WeightsRange

if TYPE_CHECKING:
    import torch

    from rouse_contracts.repository import WeightTensor


class Names:
    """Host tensors and what they are on the device.

    A tensor within the model's range is one of its layout's, or a view of one; that one is named by its address, once a
    session, with a storage exactly as large, so that what is one tensor on the host is one on the device. Every other
    tensor is copied.

    Args:
        weights: the model's range.
        layout: its tensors.
    """

    def __init__(self, device: Device, weights: WeightsRange, layout: Iterable[WeightTensor]) -> None:
        self._device, self._weights = device, weights
        entries = {weights.address + entry.image_offset_bytes: entry for entry in layout if entry.size_bytes}
        self._starts, self._entries = sorted(entries), entries
        self._named: dict[int, torch.Tensor] = {}
        # Inputs of the request that is being recorded: where their arrays begin and end, and what they are there.
        self._inputs: list[tuple[int, int, torch.Tensor]] = []

    def is_weight(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the model's range. Never touches its memory."""
        return tensor.device.type == "cpu" and tensor.numel() > 0 and self._weights.holds(tensor.data_ptr())

    def adopt(self, array: torch.Tensor, there: torch.Tensor) -> None:
        """Tensors over this one's memory are, until `drop_inputs`, what is on the device already."""
        if array.numel():
            start = array.data_ptr()
            self._inputs.append((start, start + array.numel() * array.element_size(), there))

    def drop_inputs(self) -> None:
        """Host memory is host memory again, but for the weights."""
        self._inputs.clear()

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether a host tensor is on the device as well. Never touches its memory."""
        return self.is_weight(tensor) or (bool(self._inputs) and self._input(tensor) is not None)

    def _input(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The input of this request that a tensor is, or is a view of, on the device."""
        if tensor.device.type != "cpu" or not tensor.numel():
            return None
        address, size = tensor.data_ptr(), tensor.element_size()
        for start, end, there in self._inputs:
            if start <= address < end and tensor.dtype == there.dtype and (address - start) % size == 0:
                if (address, tensor.shape, tensor.stride()) == (start, there.shape, there.stride()):
                    return there
                return there.as_strided(tensor.shape, tensor.stride(), (address - start) // size)
        return None

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same tensor on the device. Raises WeightsError where `check` does."""
        if not self.is_weight(tensor):
            given = self._input(tensor) if self._inputs else None
            return tensor.to(self._device.name) if given is None else given
        start = self.check(tensor)
        base = self._named.get(start)
        if base is None:
            base = self._named[start] = self._device.named(start, tensor.dtype, self._entries[start].shape)
        if tensor.data_ptr() == start and base.shape == tensor.shape and base.stride() == tensor.stride():
            return base
        return base.as_strided(tensor.shape, tensor.stride(), (tensor.data_ptr() - start) // tensor.element_size())

    def check(self, tensor: torch.Tensor) -> int:
        """The address of the weight that a tensor of the range is, or is a view of. Raises WeightsError where it is
        neither: no name would be right for it."""
        import torch

        address = tensor.data_ptr()
        start = self._starts[bisect_right(self._starts, address) - 1]
        entry = self._entries[start]
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        end = address + (last + 1) * tensor.element_size()
        if getattr(torch, DTYPES[entry.dtype]) != tensor.dtype or end > start + entry.size_bytes:
            raise WeightsError(
                f"a tensor of {tensor.dtype}, {list(tensor.shape)}, is laid over the weight '{entry.name}', which is "
                f"{entry.dtype} of {list(entry.shape)}: redirected execution names whole weights and their views; "
                "make a copy of it (tensor.clone()), or say execution = 'plain'"
            )
        return start

    def forget(self) -> None:
        """The session is over."""
        self._named.clear()


class Placement:
    """Replaces the parameters and buffers of modules, and puts the host's back.

    Attributes outside of `_parameters` and `_buffers` stay as they are; the mode of `rouse_runtime.redirected.mode`
    brings them to the device where they are used.

    Raises WeightsError where a tensor of the range cannot be named.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], names: Names) -> None:
        self._names = names
        # By table and name: tied parameters stand in several tables and are one tensor.
        self._host: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = []
        seen: set[int] = set()
        for module in modules:
            for part in module.modules():
                if id(part) in seen:
                    continue
                seen.add(id(part))
                for table in (part._parameters, part._buffers):
                    self._host += [(table, name, value) for name, value in table.items() if value is not None]  # type: ignore[misc]
        for _, _, value in self._host:
            if names.is_weight(value):
                names.check(value)

    def place(self) -> None:
        """Puts every tensor onto the device."""
        import torch

        placed: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            for table, name, value in self._host:
                moved = placed.get(id(value))
                if moved is None:
                    moved = self._names.on_device(value.detach())
                    if isinstance(value, torch.nn.Parameter):
                        moved = torch.nn.Parameter(moved, requires_grad=False)
                    placed[id(value)] = moved
                table[name] = moved

    def restore(self) -> None:
        """Puts the host's tensors back. Harmless twice."""
        for table, name, value in self._host:
            table[name] = value
