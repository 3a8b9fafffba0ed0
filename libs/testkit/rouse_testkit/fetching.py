"""Getting what tests need from package indexes, where the machine has it not."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Unobtainable(Exception):
    """What a test needs cannot be had on this machine; the text says why."""


def fetch(command: list[str], folder: Path, timeout_s: float) -> None:
    """Runs a command in a folder. Raises Unobtainable where it fails or takes longer."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise Unobtainable(f"`{' '.join(command)}` took longer than {timeout_s:.0f} s") from None
    if done.returncode != 0:
        raise Unobtainable(f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}")
