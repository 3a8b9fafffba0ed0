"""Registers the device with PyTorch's Python side."""

import functools

import torch

from rouse_native import _redirect
from rouse_native.redirect import module


@functools.cache
def register() -> None:
    """Makes `torch.device("rouse")`, `torch.rouse`, `tensor.rouse()` and `module.rouse()`. Calling it again does nothing."""
    _redirect.register_backend()
    torch.utils.rename_privateuse1_backend("rouse")
    torch._register_device_module("rouse", module)  # type: ignore[arg-type]
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
