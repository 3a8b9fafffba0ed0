"""Environments of other projects: made once, kept in the user's cache folder, found again by what they hold."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

INSTALL_S = 1800
READY = "ready"


class NotInstalled(Exception):
    """A project that cannot be had on this machine; the text says why."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rouse" / "loadtest"


def python_of(name: str, requirements: Sequence[str]) -> Path:
    """The interpreter of an environment that holds `requirements`, which takes minutes the first time.

    Raises NotInstalled.
    """
    key = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:12]
    folder = cache_folder() / f"{name}-{key}"
    python = folder / "bin" / "python"
    if (folder / READY).exists():
        return python
    print(f"  installing {name} ({', '.join(requirements)}) into {folder} ...", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    base = getattr(sys, "_base_executable", sys.executable)
    for command in (
        [base, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S)
        if done.returncode != 0:
            raise NotInstalled(f"{name}: {' '.join(command[:4])} … failed: {done.stderr.strip()[-500:]}")
    (folder / READY).touch()
    return python
