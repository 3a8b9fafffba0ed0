"""Writes a ResNet-50 with random weights as a Hugging Face directory: `build.py` → model/."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import ResNetConfig, ResNetForImageClassification, logging

logging.disable_progress_bar()
MODEL = Path(__file__).resolve().parent / "model"
SEED = 0


def build(folder: Path = MODEL) -> Path:
    """ResNet-50 as its paper has it: 25.6 million parameters, 1000 classes, images of 224 by 224."""
    torch.manual_seed(SEED)
    config = ResNetConfig(num_labels=1000, image_size=224)
    ResNetForImageClassification(config).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    print(f"written to {build()}")
