"""Sets up .venv for Rouse: third-party packages, generated contracts, our own packages.

Runs on a bare Python: standard library only. Each step is skipped when what it depends on has not
changed since it last succeeded.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import native_core

ROOT = Path(__file__).resolve().parents[1]
VENV = Path(os.environ.get("ROUSE_VENV", ROOT / ".venv"))
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / "rouse-setup"
TORCH = "torch==2.13.0"
SUPPORTED = ((3, 11), (3, 12))


def fail(message: str) -> None:
    print(f"setup: {message}", file=sys.stderr)
    sys.exit(1)


def packages() -> list[Path]:
    """Folders of our own distributions."""
    manifests = [p for folder in ("libs", "services") for p in (ROOT / folder).glob("*/pyproject.toml")]
    return sorted(p.parent for p in [*manifests, ROOT / "native/python/pyproject.toml"])


def digest(paths: Iterable[Path], *words: str) -> str:
    state = hashlib.sha256("\0".join([sys.version, str(VENV), *words]).encode())
    for path in sorted(paths):
        state.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return state.hexdigest()


def step(name: str, title: str, key: str, action: Callable[[], None]) -> None:
    """Runs one step with its time, or says nothing where its stamp still holds."""
    stamp = STAMPS / name
    if stamp.exists() and stamp.read_text() == key:
        return
    print(f"  {title} ...", end="", flush=True)
    started = time.monotonic()
    action()
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp.write_text(key)
    print(f" {time.monotonic() - started:.0f} s", flush=True)


def run(command: list[str]) -> None:
    """Runs a command quietly; its output is shown only where it fails."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        print(f" failed\n{done.stdout}", flush=True)
        missing = re.findall(r"No matching distribution found for (\S+)", done.stdout)
        if missing:
            fail(f"the package index has no build of {', '.join(missing)} for Python {sys.version.split()[0]} here")
        fail(f"`{' '.join(command[:6])} …` ended with {done.returncode}; its output is above")


def pip(*args: str) -> None:
    run([str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-q", *args])


def make_venv() -> None:
    # Not this interpreter where it is the environment's own, which is removed here.
    base = getattr(sys, "_base_executable", sys.executable)
    if VENV.exists():
        shutil.rmtree(VENV)
    run([base, "-m", "venv", str(VENV)])


def check_machine() -> None:
    if sys.version_info < (3, 11):
        fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}; try: make PYTHON=python3.12 setup")
    if sys.version_info[:2] not in SUPPORTED:
        print(
            f"  Python {sys.version.split()[0]} is not one of those Rouse is tested with (3.11, 3.12); trying",
            flush=True,
        )
    if sys.platform != "linux":
        fail(f"the mesh needs Linux (shared memory and process supervision); this is {sys.platform}")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        fail(f"{sys.executable} lacks the venv module; on Debian and Ubuntu: apt-get install python3-venv")
    if shutil.disk_usage(ROOT).free < 4 << 30:
        fail(f"4 GB of free disk are needed below {ROOT}")


def build_native_core() -> None:
    """The C++ core, or one line that there is none. Its files lie in the checkout, not in the environment: what was
    built for another environment is built again."""
    cxx = native_core.compiler()
    key = digest(native_core.sources(ROOT), TORCH, cxx or "")
    mark = ROOT / "native/build/built-for"
    if cxx and not (mark.exists() and mark.read_text() == key):
        (STAMPS / "native").unlink(missing_ok=True)

    def action() -> None:
        if cxx is None:
            print(" no C++20 compiler here (Debian: apt-get install g++): models run in plain PyTorch;", end="")
            return
        native_core.build(ROOT, PYTHON, cxx, run)
        mark.write_text(key)

    step("native", "native core (C++; the first time takes minutes)", key, action)


def main() -> int:
    check_machine()
    started = time.monotonic()
    ours = packages()
    manifests = [p / "pyproject.toml" for p in ours]
    constraints, requirements = ROOT / "constraints.txt", ROOT / "requirements-dev.txt"

    step("venv", f"Python {sys.version.split()[0]} environment in {VENV}", digest([]), make_venv)
    step("torch", f"PyTorch ({TORCH})", digest([], TORCH), lambda: pip(TORCH))
    step(
        "third-party",
        "third-party packages",
        digest([constraints, requirements, *manifests]),
        lambda: pip("-c", str(constraints), "-r", str(requirements)),
    )
    step(
        "packages",
        f"{len(ours)} packages of Rouse and what they need",
        digest([constraints, *manifests]),
        lambda: pip(
            "--no-build-isolation", "-c", str(constraints), *[word for path in ours for word in ("-e", str(path))]
        ),
    )
    step(
        "contracts",
        "contracts from proto/",
        digest([*(ROOT / "proto").rglob("*.proto"), ROOT / "libs/contracts/generate.py"])
        + str((ROOT / "libs/contracts/rouse_contracts/gen/__init__.py").exists()),
        lambda: run([str(PYTHON), str(ROOT / "libs/contracts/generate.py")]),
    )
    build_native_core()
    if time.monotonic() - started > 1:
        print(f"  ready in {time.monotonic() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
