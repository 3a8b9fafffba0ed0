"""Tensors on another device, and comparing them with what PyTorch computes on the CPU, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Both sides compute with one thread: sums over several are rounded otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def moved(value: Any, device: str) -> Any:
    """The value with each tensor in it on `device`, sizes and strides kept."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(each, device) for key, each in value.items()}
    if isinstance(value, list | tuple):
        items = [moved(each, device) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def parameters(quantized: torch.Tensor) -> Any:
    """Scale and zero point; of each channel, with the axis, where each has its own."""
    if quantized.qscheme() == torch.per_tensor_affine:
        return quantized.q_scale(), quantized.q_zero_point()
    return quantized.q_per_channel_scales(), quantized.q_per_channel_zero_points(), quantized.q_per_channel_axis()


def assert_same(found: Any, expected: Any, where: str = "result") -> None:
    """Same structure, dtypes, sizes, strides and bits (every NaN is the same)."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor), where
        assert found.dtype == expected.dtype, f"{where}: {found.dtype} instead of {expected.dtype}"
        assert found.shape == expected.shape, f"{where}: {tuple(found.shape)} instead of {tuple(expected.shape)}"
        assert found.stride() == expected.stride(), f"{where}: strides {found.stride()} instead of {expected.stride()}"
        if expected.is_quantized:
            assert found.qscheme() == expected.qscheme(), f"{where}: {found.qscheme()}"
            assert_same(parameters(found), parameters(expected), f"{where}'s quantisation")
            found, expected = found.int_repr(), expected.int_repr()
        host = found.cpu()
        assert torch.equal(torch.isnan(host), torch.isnan(expected)), f"{where}: other NaNs"
        same = (host == expected) | torch.isnan(expected)
        assert bool(same.all()), f"{where}: {int((~same).sum())} of {same.numel()} values differ"
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for index, each in enumerate(expected):
            assert_same(found[index], each, f"{where}[{index}]")
    else:
        assert found == expected or (found != found and expected != expected), f"{where}: {found} instead of {expected}"
