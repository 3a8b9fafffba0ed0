"""Trains the digit reader on scikit-learn's digits and writes a deployable folder: `train.py` → model/."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from function import network
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

HERE = Path(__file__).resolve().parent
MODEL = HERE / "model"
SEED, EPOCHS, BATCH = 0, 20, 32


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and held-out images FP32 [n, 1, 8, 8] in 0..1, then their digits; always the same split."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return tuple(train_test_split(images, labels, test_size=0.25, stratify=labels, random_state=SEED))


def train(images: np.ndarray, labels: np.ndarray) -> torch.nn.Module:
    """Trains from scratch in a few seconds on one core; a network this small gains nothing from more."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    return model


def build(folder: Path = MODEL) -> Path:
    """Writes function.py, rouse.toml and the trained weights into `folder`."""
    images, _, labels, _ = digits()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("function.py", "rouse.toml"):
        shutil.copy(HERE / name, folder / name)
    save_file(train(images, labels).state_dict(), folder / "weights.safetensors")
    return folder


if __name__ == "__main__":
    print(f"trained into {build()}")
