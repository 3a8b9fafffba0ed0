"""Registers the device with PyTorch's Python side."""

import functools

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from rouse_native import _redirect
from rouse_native.redirect import module


@functools.cache
def register() -> None:
    """Makes `torch.device("rouse")`, `torch.rouse`, `tensor.rouse()` and `module.rouse()`, once."""
    _redirect.register_backend()
    rename_privateuse1_backend("rouse")
    torch._register_device_module("rouse", module)  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
