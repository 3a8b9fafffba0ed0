"""What the executors of tests compute on: the CPU; a stand-in for an accelerator (native/tests/accelerator); a GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rouse_testkit import native

VARIABLE = "ROUSE_TEST_COMPUTE"
STAND_IN = "stand_in"


@dataclass(frozen=True)
class Compute:
    """Options of `rouse_native.redirect.spawn_local`."""

    device: str
    libraries: tuple[str, ...] = ()


def chosen() -> str:
    """What the environment says: `cpu`, `stand_in`, or a device of PyTorch's as `cuda:0`."""
    return os.environ.get(VARIABLE, "cpu")


def compute(name: str) -> Compute:
    """That one, built where it has to be. Raises Unobtainable where it cannot be built."""
    if name != STAND_IN:
        return Compute(name)
    library = native.build("tests", "rouse_accelerator") / "src/executor/librouse_accelerator.so"
    return Compute("accelerator:0", (str(library),))


def stand_in_executor() -> Path:
    """rouse-executor on the stand-in, built. Raises Unobtainable."""
    return native.build("tests", "stand-in-executor") / "src/serve/stand-in-executor"
