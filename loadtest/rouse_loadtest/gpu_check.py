"""`make gpu-check`: builds, runs what can run on this machine's GPU, and writes what came of it to docs/benchmarks.

Exit codes: 0 every part ran on the GPU and passed; 1 a part failed; 2 no GPU, or a PyTorch without CUDA.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from rouse_loadtest.place import at, lacking
from rouse_loadtest.report import MEASURE_HEADER, ROOT, Measure, environment, figure, markdown, measure_rows, read

REPORTS = ROOT / "docs/benchmarks"
LIMIT_S = 600.0
DEVICE = "cuda:0"


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True)
class Part:
    """What one part of the check came to.

    Attributes:
        ran: how many checks ran on the GPU, or figures were measured there; a part passes only where some did.
        measures: those figures.
    """

    name: str
    outcome: Outcome
    said: str
    ran: int = 0
    measures: Sequence[Measure] = ()


# Native suites: a program, and those of its tests that compute on the GPU.
NATIVE = {
    "device memory": ("device/device_test", "*/Conformance.*/cuda"),
    "copies, memory, random numbers": ("executor/compute_test", "*/cuda_0"),
    "sessions": ("executor/engine_test", "*/cuda_0"),
    "tapes": ("tape/tape_replay_test", "*/cuda_0"),
    "CUDA graphs": ("tape/tape_graph_test", "*/cuda_0"),
}

# Scenarios of `make bench` that compute on the GPU.
SCENARIOS = ("redirect", "swap", "remoting")


def judged(name: str, ran: int, skipped: int, failed: Sequence[str]) -> Part:
    """A part from what its tests said: what did not run did not pass."""
    if failed:
        return Part(name, Outcome.FAILED, "; ".join(failed)[:500], ran)
    if ran == 0 or skipped:
        return Part(name, Outcome.FAILED, f"{ran} ran on the GPU and {skipped} were skipped", ran)
    return Part(name, Outcome.PASSED, f"{ran} passed", ran)


def exit_code(parts: Sequence[Part]) -> int:
    return 0 if parts and all(part.ran and part.outcome is Outcome.PASSED for part in parts) else 1


def gpu_name(library: str = "libcuda.so.1") -> tuple[str, str]:
    """The first GPU's name by the driver, and an empty text; or an empty name, and why there is none."""
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        return "", f"no NVIDIA driver here ({error})"
    count, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
    try:
        for code in (driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count))):
            if code != 0:
                return "", f"the NVIDIA driver says {code}"
        if count.value < 1:
            return "", "the NVIDIA driver knows no GPU"
        driver.cuDeviceGetName(name, 255, 0)
    except AttributeError as error:
        return "", f"{library} is no NVIDIA driver ({error})"
    return name.value.decode(), ""


def google_test(name: str, program: Path, only: str, limit_s: float) -> Part:
    """Tests of a native program, as they say themselves that they ran."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [str(program), f"--gtest_filter={only}", f"--gtest_output=json:{report}"]
        # The executor's suites run there instead of on the CPU; device memory's has a kind of its own.
        there = {**os.environ, "ROUSE_TEST_PLACE": DEVICE}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, env=there)
        except subprocess.TimeoutExpired:
            return Part(name, Outcome.FAILED, f"not done within {limit_s:.0f} s")
        if not report.exists():
            return Part(name, Outcome.FAILED, f"{program.name} ended with {done.returncode}: {done.stdout[-300:]}")
        tests = [test for suite in json.loads(report.read_text())["testsuites"] for test in suite["testsuite"]]
    skipped = [test for test in tests if test["result"] != "COMPLETED"]
    failed = [f"{test['classname']}.{test['name']}" for test in tests if "failures" in test]
    if done.returncode != 0 and not failed:
        failed = [f"{program.name} ended with {done.returncode}"]
    return judged(name, len(tests) - len(skipped) - len(failed), len(skipped), failed)


def exactness(device: str = DEVICE, libraries: tuple[str, ...] = ()) -> Part:
    """The `rouse` device over an executor on the GPU, against the CPU."""
    from rouse_loadtest.gpu_exact import compare
    from rouse_native import redirect

    try:
        with redirect.spawn_local(device=device, libraries=libraries):
            found = compare("rouse")
    except (RuntimeError, OSError) as error:
        return Part("exactness", Outcome.FAILED, str(error).splitlines()[0])
    wrong = [f"{f.model} in {f.dtype}: {f.error:.1e} over {f.tolerance:.0e}" for f in found if not f.holds]
    return judged("exactness", len(found) - len(wrong), 0, wrong)


def scenario(name: str, limit_s: float, device: str = DEVICE) -> Part:
    """A scenario's short rounds in a process of its own: one that crashes takes nothing else with it."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [
            sys.executable, "-m", "rouse_loadtest", name, "--device", device, "--quick", "--json", str(result),
            "--plots", folder,
        ]  # fmt: skip
        path = os.pathsep.join(filter(None, [str(ROOT / "loadtest"), os.environ.get("PYTHONPATH")]))
        there = {**os.environ, "PYTHONPATH": path}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, env=there)
        except subprocess.TimeoutExpired:
            return Part(name, Outcome.FAILED, f"not done within {limit_s:.0f} s")
        # It is written at the very end; the exit code is 1 for a crash, too.
        if not result.exists():
            return Part(name, Outcome.FAILED, f"it ended with {done.returncode}: {_last_line(done.stderr)}")
        return measured(name, device, *read(result))


def _last_line(text: str) -> str:
    """The last one that says something: groups of exceptions are drawn with frames."""
    lines = [line.strip(" |+-") for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "")[:300]


def measured(name: str, device: str, measures: Sequence[Measure], where: Mapping[str, object]) -> Part:
    """A part from what its scenario measured: what does not hold did not pass, nor what was taken elsewhere."""
    if where.get("device") != device:
        return Part(name, Outcome.FAILED, f"it ran on {where.get('device')}, and not on {device}")
    wrong = [f"{m.name}: {figure(m.value)}, bar {figure(m.bar)}" for m in measures if m.bar is not None and not m.holds]
    if not measures or wrong:
        said = f"does not hold: {'; '.join(wrong)}" if wrong else "nothing was measured"
        return Part(name, Outcome.FAILED, said, len(measures), measures)
    return Part(name, Outcome.PASSED, f"{len(measures)} figures, below", len(measures), measures)


def report_text(gpu: str, parts: Sequence[Part], today: str, facts: dict[str, object]) -> str:
    # What a program said as it crashed has several lines, and a row has one.
    rows = [[part.name, part.outcome.value, " ".join(part.said.split())] for part in parts]
    table = markdown(rows, ["part", "outcome", ""])
    machine = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    figures = "".join(
        f'\n## {part.name}\n\n`make bench SCENARIO={part.name} ARGS="--device {DEVICE} --quick"`: few short rounds.\n\n'
        f"{markdown(measure_rows(part.measures), MEASURE_HEADER)}"
        for part in parts
        if part.measures
    )
    return f"# GPU check of {today}\n\n`make gpu-check` on {gpu}.\n\n{machine}\n\n{table}{figures}"


def build() -> Path:
    """Everything native, its tests included. Returns the build's folder."""
    from rouse_testkit import native

    return native.build("tests")


def main(make: Callable[[], Path] = build) -> int:
    started = time.monotonic()
    print("gpu-check: building, with the native tests", flush=True)
    folder = make()
    gpu, why = gpu_name()
    import torch

    why = why or lacking(at(DEVICE))
    if why:
        print(
            f"gpu-check: nothing ran: {why}. Everything builds. It needs an NVIDIA driver and a PyTorch for CUDA in "
            f"{os.environ.get('ROUSE_VENV', '.venv')}; then: make gpu-check",
            flush=True,
        )
        return 2

    def limit_s(to_come: int) -> float:
        """An even share of the time that is left, so that one that hangs leaves some for those that come."""
        return max((LIMIT_S - (time.monotonic() - started)) / to_come, 1.0)

    parts = [
        google_test(name, folder / "src" / program, tests, limit_s(1)) for name, (program, tests) in NATIVE.items()
    ]
    parts.append(exactness())
    parts += [scenario(name, limit_s(len(SCENARIOS) - done)) for done, name in enumerate(SCENARIOS)]
    facts = {**environment(), "pytorch": torch.__version__, "cuda": torch.version.cuda}
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    REPORTS.mkdir(parents=True, exist_ok=True)
    path = REPORTS / f"gpu-{today}.md"
    path.write_text(report_text(gpu, parts, today, facts))
    for part in parts:
        print(f"gpu-check: {part.name}: {part.outcome.value}: {part.said}")
    print(f"gpu-check: {path.relative_to(ROOT)} has it", flush=True)
    return exit_code(parts)


if __name__ == "__main__":
    sys.exit(main())
