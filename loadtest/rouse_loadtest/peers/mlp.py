"""The model of the batching scenario: three layers, the same numbers in every server. Needs torch alone."""

from __future__ import annotations

import itertools

import torch

WIDTHS = (512, 2048, 2048, 512)
SEED = 7


def make_mlp() -> torch.nn.Module:
    """[n, 512] in, [n, 512] out: 6 million parameters."""
    torch.manual_seed(SEED)
    layers: list[torch.nn.Module] = []
    for width, following in itertools.pairwise(WIDTHS):
        layers += [torch.nn.Linear(width, following), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).eval()
