"""Writes a BERT-base with random weights as a Hugging Face directory: `build.py` → model/."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import BertConfig, BertModel, logging

logging.disable_progress_bar()
MODEL = Path(__file__).resolve().parent / "model"
SEED = 0


def build(folder: Path = MODEL) -> Path:
    """BERT-base: 12 layers, 768 wide, 110 million parameters."""
    torch.manual_seed(SEED)
    BertModel(BertConfig()).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    print(f"written to {build()}")
