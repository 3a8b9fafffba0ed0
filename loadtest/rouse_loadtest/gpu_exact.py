"""Whether the `rouse` device on an accelerator computes what PyTorch computes on the CPU, within stated tolerances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from rouse_loadtest.place import Place

# Largest |found - expected| over (1 + |expected|), by dtype: other kernels sum in another order, and convolutions of
# float32 may be computed in TF32, with ten bits of mantissa, PyTorch's default. Of values around 1, as below.
TOLERANCES = {torch.float32: 5e-3, torch.float16: 1e-2, torch.bfloat16: 8e-2}


@dataclass(frozen=True)
class Found:
    """One model in one dtype.

    Attributes:
        error: largest |found - expected| over (1 + |expected|), expected being the CPU's in float32.
    """

    model: str
    dtype: str
    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance


def _convolutions() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1, groups=16), torch.nn.GELU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Linear(16, 10), torch.nn.Softmax(-1),
    )  # fmt: skip


def _attention() -> torch.nn.Module:
    return torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)


def _layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.SiLU(), torch.nn.Linear(64, 8))


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "convolutions": (_convolutions, (2, 3, 32, 32)),
    "attention": (_attention, (2, 12, 64)),
    "layers": (_layers, (4, 64)),
}


def compare(device: str) -> list[Found]:
    """Every model in every dtype on `device`, once eagerly learnt and once known."""
    found = []
    for name, (make, sizes) in MODELS.items():
        given = torch.randn(sizes, generator=torch.Generator().manual_seed(6))
        with torch.inference_mode():
            expected = _seeded(make)(given)
            for dtype, tolerance in TOLERANCES.items():
                model, row = _seeded(make).to(device, dtype), given.to(device, dtype)
                for _ in range(2):
                    got = model(row).float().cpu()
                error = difference(got, expected)
                found.append(Found(name, str(dtype).removeprefix("torch."), error, tolerance))
    return found


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest |found - expected| over (1 + |expected|)."""
    return float(((found - expected).abs() / (1 + expected.abs())).max())


def agree(place: Place, found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether an executor there computed what runs natively: to the bit on the host, else within the tolerance."""
    if place.on_host:
        return torch.equal(found, expected)
    return found.shape == expected.shape and difference(found, expected) <= TOLERANCES[expected.dtype]


def _seeded(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    torch.manual_seed(5)
    return make().eval()
