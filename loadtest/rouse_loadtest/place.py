"""Where a scenario computes: on the host, on a GPU, or on the tests' stand-in for one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from rouse_testkit.compute import STAND_IN, Compute, compute, stand_in_executor


@dataclass(frozen=True)
class Place:
    """One device, as each of those that compute there names it.

    Attributes:
        name: as `--device` has it.
        executor: `rouse-executor --device`.
        session: options of `redirect.spawn_local`.
        torch: PyTorch's device of what runs natively, in this process.
        program: the executor; None: the one that was built for this machine.
    """

    name: str
    executor: str
    session: Compute
    torch: str
    program: Path | None = None

    @property
    def on_host(self) -> bool:
        """Whether executors compute as this process does, to the bit, in memory that it may touch."""
        return self.session.device == "cpu"

    @property
    def gpu(self) -> int | None:
        """Number of the GPU; None: it is none."""
        return int(self.torch.removeprefix("cuda:")) if self.torch.startswith("cuda:") else None

    @property
    def copied_to(self) -> bool:
        """Whether this process may copy into the device's memory itself, as executors do."""
        return self.on_host or self.gpu is not None


HOST = Place("host:0", "host:0", Compute("cpu"), "cpu")


def at(name: str) -> Place:
    """The place of that name: host:N, cuda:N or stand_in, which is built where it has to be.

    Raises ValueError for another name, Unobtainable where the stand-in cannot be built.
    """
    if name == STAND_IN:
        return Place(STAND_IN, "host:0", compute(STAND_IN), "cpu", stand_in_executor())
    if re.fullmatch(r"host:\d{1,2}", name):
        return replace(HOST, name=name, executor=name)
    if re.fullmatch(r"cuda:\d{1,2}", name):
        return Place(name, name, Compute(name), name)
    raise ValueError(f"'{name}' is no device: it is host:N, cuda:N or {STAND_IN}, a stand-in for an accelerator")


def lacking(place: Place) -> str:
    """Why nothing can compute there; empty where it can."""
    import torch

    if place.gpu is None or place.gpu < torch.cuda.device_count():
        return ""
    return f"PyTorch {torch.__version__} here computes on {torch.cuda.device_count()} GPUs, and not on {place.name}"
