"""Cold starts: a new process that replays a saved tape over mapped weights, beside one that builds the model."""

from __future__ import annotations

import copy
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rouse_loadtest.core_models import MODELS, build
from rouse_loadtest.report import Measure, figure, table
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


@dataclass(frozen=True)
class Saved:
    """A model as files, one request to it, and what it answers."""

    name: str
    model: str
    folder: Path
    request: bytes
    answer: bytes

    @property
    def replay(self) -> list[str]:
        from rouse_native import redirect

        program = Path(redirect.__file__).parents[1] / "bin" / "rouse-replay"
        (tape,) = (self.folder / "tapes").glob("*.tape")
        return [str(program), str(tape), str(self.folder / "image"), "1"]


@dataclass
class Timed:
    """Seconds, one a round."""

    python: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)


def save(name: str, folder: Path) -> Saved:
    """Writes a model's safetensors, image and verified tape. Raises RuntimeError where it is not taped."""
    import torch

    from rouse_native import redirect, tape

    built = build(name)
    built.module.save_pretrained(folder)
    torch.save(built.inputs, folder / "inputs.pt")
    (folder / "tapes").mkdir()
    layout = tape.write_image(built.module, folder / "image")
    names = list(built.inputs)
    with redirect.spawn_local(tapes=folder / "tapes", model=folder / "image"), torch.inference_mode():
        expected = built.result(built.module(**built.inputs))
        there = copy.deepcopy(built.module)
        tape.adopt_image(there, layout)
        inputs = [value.to("rouse") for value in built.inputs.values()]

        def function(*given: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = built.result(there(**dict(zip(names, given, strict=True))))
            return found

        for _ in range(3):
            tape.record(function, inputs, name)
        (info,) = tape.infos()
    if info.tapes != 1 or info.refused:
        raise RuntimeError(f"{name} has no saved tape: {info.refused}")
    request = b"".join(value.contiguous().numpy().tobytes() for value in built.inputs.values())
    return Saved(name, type(built.module).__name__, folder, request, expected.numpy().tobytes())


def answered(command: Sequence[str], saved: Saved, request: bytes) -> float:
    """Seconds from starting a process to its answer. Raises RuntimeError where the answer is another."""
    began = time.perf_counter()
    done = subprocess.run(command, input=request, stdout=subprocess.PIPE, timeout=300, check=True)
    took = time.perf_counter() - began
    if done.stdout != saved.answer:
        raise RuntimeError(f"{saved.name}: {command[0]} gave other numbers than the model")
    return took


def running(saved: Saved) -> tuple[float, float]:
    """Seconds of the first request to an executor that is running, and of a warm one after it."""
    with subprocess.Popen([*saved.replay, "--wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # It is up when it has mapped PyTorch and waits; nothing tells, but its memory stands still.
        _settled(process.pid)
        times = []
        for i in range(1 + WARM):
            began = time.perf_counter()
            process.stdin.write((b"" if i else b"!") + saved.request)
            process.stdin.flush()
            if process.stdout.read(len(saved.answer)) != saved.answer:
                raise RuntimeError(f"{saved.name}: replay {i} gave other numbers than the model")
            times.append(time.perf_counter() - began)
        process.stdin.close()
    return times[0], statistics.median(times[2:])


def _settled(pid: int) -> None:
    seen, same = "", 0
    while same < 5:
        now = Path(f"/proc/{pid}/statm").read_text()
        same = same + 1 if now == seen else 0
        seen = now
        time.sleep(0.05)


def measure(run: Run) -> Sequence[Measure]:
    rows, found = [], []
    for name in MODELS:
        folder = run.folder / name
        folder.mkdir()
        saved = save(name, folder)
        timed = Timed()
        python = [sys.executable, "-c", PYTHON, saved.model, str(folder), str(folder / "inputs.pt")]
        for _ in range(1 if run.quick else ROUNDS):
            timed.python.append(answered(python, saved, b""))
            timed.cold.append(answered(saved.replay, saved, saved.request))
            first, warm = running(saved)
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
                    "ratio", RUNNING_BAR, note="reads and prepares the tape, maps the weights, replays")
        )  # fmt: skip
        print(f"  {name}: measured", flush=True)
    header = ["", "Python ms", "new process ms", "running executor ms", "warm replay ms"]
    print(table(rows, header), end="\n\n")
    return found


SCENARIO = Scenario("coldstart", "a saved tape over mapped weights, beside building the model in Python", 5, measure)
