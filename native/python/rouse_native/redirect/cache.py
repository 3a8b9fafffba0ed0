"""What operators return, kept across processes, so that a new process asks the executor for nothing it knows.

A wrong entry is harmless: the executor compares each result with it, and says so. Entries are of one PyTorch version.
"""

import os
from pathlib import Path

import torch

from rouse_native import _redirect


def _file(folder: Path) -> Path:
    return folder / f"templates-{torch.__version__}.bin"


def save_templates(folder: Path) -> int:
    """Writes all entries into `folder`; returns their bytes. Another process that writes at the same time wins or loses
    whole."""
    folder.mkdir(parents=True, exist_ok=True)
    data: bytes = _redirect.save_templates()
    partial = _file(folder).with_suffix(f".{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(_file(folder))
    return len(data)


def load_templates(folder: Path) -> int:
    """Reads what save_templates() wrote; returns how many entries there are, 0 where there are none for this PyTorch.

    Raises ValueError where the file is damaged.
    """
    path = _file(folder)
    if not path.exists():
        return 0
    taken = int(_redirect.load_templates(path.read_bytes()))
    if taken < 0:
        raise ValueError(f"{path} is damaged or of another version; remove it")
    return taken
