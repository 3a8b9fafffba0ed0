"""Exports an MLP with random weights by torch.export: `build.py` → model/ with model.pt2 and the settings."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
SEED = 0
PIXELS, HIDDEN, CLASSES = 784, 512, 10
# A bound of the program itself: larger batches are refused as BAD_TENSOR.
MAX_BATCH = 256


class Mlp(torch.nn.Module):
    """Three layers for images of 28 by 28 pixels, 669,706 parameters; logits and their most likely class."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(PIXELS, HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(HIDDEN, HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(HIDDEN, CLASSES),
        )

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        """[n, 28, 28] float32 to `logits` [n, 10] and `digit` [n]."""
        logits = self.layers(image.flatten(1))
        return {"logits": logits, "digit": logits.argmax(1)}


def build(folder: Path = HERE / "model") -> Path:
    """Writes the program; the names of its inputs and outputs are those of `forward`."""
    torch.manual_seed(SEED)
    batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    program = torch.export.export(Mlp().eval(), (torch.zeros(2, 28, 28),), dynamic_shapes=({0: batch},))
    folder.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, folder / "model.pt2")
    shutil.copyfile(HERE / "rouse.toml", folder / "rouse.toml")
    return folder


if __name__ == "__main__":
    print(f"written to {build()}")
