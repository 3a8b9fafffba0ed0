"""`make gpu-check`: builds, runs what can run on this machine's GPU, and writes what came of it to docs/benchmarks.

Exit codes: 0 every part ran on the GPU and passed; 1 a part failed; 2 no GPU, or a PyTorch without CUDA; 3 what there
is passed, and parts are not implemented.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from rouse_loadtest.report import ROOT, environment

REPORTS = ROOT / "docs/benchmarks"
LIMIT_S = 600.0
DEVICE = "cuda:0"


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    MISSING = "not implemented"


@dataclass(frozen=True)
class Part:
    """What one part of the check came to.

    Attributes:
        ran: how many checks ran on the GPU; a part passes only where some did.
    """

    name: str
    outcome: Outcome
    said: str
    ran: int = 0


# What belongs to it and nobody has built: named in each report, so that no report looks complete.
NOT_IMPLEMENTED = {
    "redirect": "its executors of the CPU are not yet given another device",
    "swap": "the scenario swaps into memory of the host, and PCIe's bandwidth is not measured",
    "remoting": "gpu-server and its scenario start executors on host:N only",
}


# Native suites: a program, and those of its tests that compute on the GPU.
NATIVE = {
    "device memory": ("device/device_test", "*/Conformance.*/cuda"),
    "copies, memory, random numbers": ("executor/compute_test", "*/cuda_0"),
    "sessions": ("executor/engine_test", "*/cuda_0"),
    "tapes": ("tape/tape_replay_test", "*/cuda_0"),
    "CUDA graphs": ("tape/tape_graph_test", "*/cuda_0"),
}


def missing_parts() -> list[Part]:
    return [Part(name, Outcome.MISSING, why) for name, why in NOT_IMPLEMENTED.items()]


def judged(name: str, ran: int, skipped: int, failed: Sequence[str]) -> Part:
    """A part from what its tests said: what did not run did not pass."""
    if failed:
        return Part(name, Outcome.FAILED, "; ".join(failed)[:500], ran)
    if ran == 0 or skipped:
        return Part(name, Outcome.FAILED, f"{ran} ran on the GPU and {skipped} were skipped", ran)
    return Part(name, Outcome.PASSED, f"{ran} passed", ran)


def exit_code(parts: Sequence[Part]) -> int:
    outcomes = {part.outcome for part in parts}
    if not any(part.ran for part in parts) or Outcome.FAILED in outcomes:
        return 1
    return 3 if Outcome.MISSING in outcomes else 0


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


def report_text(gpu: str, parts: Sequence[Part], today: str, facts: dict[str, object]) -> str:
    rows = "\n".join(f"| {part.name} | {part.outcome.value} | {part.said} |" for part in parts)
    machine = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    return (
        f"# GPU check of {today}\n\n`make gpu-check` on {gpu}.\n\n{machine}\n\n"
        f"| part | outcome | |\n|---|---|---|\n{rows}\n"
    )


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

    if gpu and not torch.cuda.is_available():
        why = f"PyTorch {torch.__version__} here computes on no GPU"
    if why:
        print(
            f"gpu-check: nothing ran: {why}. Everything builds. It needs an NVIDIA driver and a PyTorch for CUDA in "
            f"{os.environ.get('ROUSE_VENV', '.venv')}; then: make gpu-check",
            flush=True,
        )
        return 2
    parts = []
    for name, (program, tests) in NATIVE.items():
        left_s = LIMIT_S - (time.monotonic() - started)
        parts.append(google_test(name, folder / "src" / program, tests, max(left_s, 1.0)))
    parts += [exactness(), *missing_parts()]
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
