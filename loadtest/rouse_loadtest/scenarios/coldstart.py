"""Cold starts: a new process that replays a saved tape over mapped weights, beside one that builds the model."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rouse_common.lifecycle import loop_factory
from rouse_loadtest.core_models import MODELS
from rouse_loadtest.report import Measure, figure, table
from rouse_loadtest.saved_tape import Saved, executor, save
from rouse_loadtest.scenario import Run, Scenario

ROUNDS, WARM = 5, 9
COLD_BAR, RUNNING_BAR = 0.15, 1.3
# One request in a new process, from importing transformers to the first result, as a function's own code does it.
PYTHON = """
import sys
import torch
import transformers
torch.set_num_threads(1)
inputs = torch.load(sys.argv[3])
model = getattr(transformers, sys.argv[1]).from_pretrained(sys.argv[2]).eval()
with torch.inference_mode():
    output = model(**inputs)
sys.stdout.buffer.write(output[0].numpy().tobytes())
sys.stdout.flush()
"""


@dataclass
class Timed:
    """Seconds, one a round."""

    python: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)


def replay(saved: Saved) -> list[str]:
    """The program that replays a saved tape, and nothing else."""
    import rouse_native

    program = Path(rouse_native.__file__).parent / "bin" / "rouse-replay"
    return [str(program), str(saved.tape), str(saved.image), "1"]


def answered(command: Sequence[str], saved: Saved, request: bytes, *, exact: bool = True) -> float:
    """Seconds until a new process has answered. Raises RuntimeError where it answers something else.

    Args:
        exact: to the bit; else to some digits: where a program's loader puts weights, convolutions may sum otherwise.
    """
    began = time.perf_counter()
    done = subprocess.run(command, input=request, capture_output=True, check=True, timeout=300)
    took = time.perf_counter() - began
    if done.stdout != saved.answer and (exact or not _close(done.stdout, saved.answer)):
        raise RuntimeError(f"{saved.name}: {command[0]} gave other numbers than the model")
    return took


def _close(found: bytes, wanted: bytes) -> bool:
    one, other = np.frombuffer(found, np.float32), np.frombuffer(wanted, np.float32)
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-3, atol=1e-3))


async def running(saved: Saved) -> tuple[float, float, float]:
    """Seconds to prepare the tape in a new executor, of its first request, and of a warm one after it."""
    async with executor(saved.place) as served:
        await served.map(saved)
        await served.arrived(saved)
        began = time.perf_counter()
        await served.load(saved)
        loaded = time.perf_counter() - began
        times = [await served.ask(saved) for _ in range(1 + WARM)]
    return loaded, times[0], statistics.median(times[2:])


def measure(run: Run) -> Sequence[Measure]:
    rows, found = [], []
    for name in MODELS:
        folder = run.folder / name
        folder.mkdir()
        saved = save(name, folder)
        timed = Timed()
        python = [sys.executable, "-c", PYTHON, saved.model, str(folder), str(folder / "inputs.pt")]
        for _ in range(1 if run.quick else ROUNDS):
            timed.python.append(answered(python, saved, b"", exact=False))
            timed.cold.append(answered(replay(saved), saved, saved.request))
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                load, first, warm = runner.run(running(saved))
            timed.load.append(load)
            timed.running.append(first)
            timed.warm.append(warm)
        rows.append([name, *(figure(1e3 * statistics.median(each)) for each in vars(timed).values())])
        found.append(
            Measure(f"cold_over_python.{name}", [a / b for a, b in zip(timed.cold, timed.python, strict=True)],
                    "ratio", COLD_BAR, note="new process to first result; files in the page cache for both")
        )  # fmt: skip
        found.append(
            Measure(f"running_executor_over_warm.{name}",
                    [a / b for a, b in zip(timed.running, timed.warm, strict=True)],
                    "ratio", RUNNING_BAR, note="first request to a running executor with the weights and the tape")
        )  # fmt: skip
        found.append(
            Measure(f"load_tapes_ms.{name}", [1e3 * a for a in timed.load], "ms",
                    note="a running executor reads and prepares the tape, before its first request")
        )  # fmt: skip
        print(f"  {name}: measured", flush=True)
    header = ["", "Python ms", "new process ms", "load tape ms", "first request ms", "warm request ms"]
    print(table(rows, header), end="\n\n")
    return found


SCENARIO = Scenario("coldstart", "a saved tape over mapped weights, beside building the model in Python", 5, measure)
