"""What requests cost on a machine that was measured, step by step.

Costs are kept as they were found and drawn from, so that their spread stays as it was. What goes on at once slows each
other: costs are told apart by how many other requests were under way when a step began. `load` and `save` are of one
JSON object; times end in _ms.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rouse_simulator.profile import ProfileError

# Of one step: the costs when no other request was under way, when one was, and so on; the last: so many or more.
Levels = tuple[tuple[float, ...], ...]
STEPS = ("way_ms", "lease_ms", "first_lease_ms", "load_ms", "run_ms", "first_run_ms", "evict_ms")


@dataclass(frozen=True)
class Machine:
    """A machine with functions of one size; milliseconds of each step as often as it was measured, by level.

    Args:
        name: what it is.
        weights_bytes: of each function.
        way_ms: from a request's client to the node's queue and back.
        lease_ms: until a request held a device that was free and had its model.
        first_lease_ms: the same where the model was loaded for it, without the load.
        load_ms: from the decision to load a model in place of another one until it was on the device with an instance
            attached.
        run_ms: with the device: from the node's queue to the instance, the execution, and back.
        first_run_ms: the same of the first request after a load.
        evict_ms: from the decision that a model leaves until its memory was free.
    """

    name: str
    weights_bytes: int
    way_ms: Levels
    lease_ms: Levels
    first_lease_ms: Levels
    load_ms: Levels
    run_ms: Levels
    first_run_ms: Levels
    evict_ms: Levels

    def check(self) -> None:
        """Raises ValueError naming what cannot be simulated."""
        for name in STEPS:
            levels = getattr(self, name)
            if not levels or not all(levels):
                raise ValueError(f"{name}: want at least one measurement")
            for ms in itertools.chain(*levels):
                if not 0 <= ms < float("inf"):
                    raise ValueError(f"{name}: one is {ms}; want 0 or more")
        if self.weights_bytes <= 0:
            raise ValueError(f"weights_bytes is {self.weights_bytes}; want more than 0")


def save(path: Path, machine: Machine) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(machine)) + "\n")


def load(path: Path) -> Machine:
    """Reads a machine. Raises ProfileError."""
    try:
        data: Mapping[str, Any] = json.loads(path.read_text())
        steps = {name: tuple(tuple(float(ms) for ms in level) for level in data[name]) for name in STEPS}
        machine = Machine(name=str(data["name"]), weights_bytes=int(data["weights_bytes"]), **steps)
        machine.check()
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"profile {path}: {type(error).__name__} {error}; see measured.Machine") from error
    return machine
