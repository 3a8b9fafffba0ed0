"""Builds the native core into native/python: what `make setup` does where the machine has a C++20 compiler.

Standard library only; CMake and Ninja come from the environment, where the package index has put them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

# A translation unit that includes PyTorch takes up to this much memory while it is compiled.
UNIT_BYTES = 1536 << 20


def compiler() -> str | None:
    """The machine's C++ compiler if it knows C++20, as CMake will find it."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path is None:
            continue
        command = [path, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
        # A header of C++20's library, and not only a compiler that takes the flag.
        source = "#include <bit>\n#include <span>\nint main() { return std::popcount(0u); }\n"
        if subprocess.run(command, input=source, text=True, capture_output=True, check=False).returncode == 0:
            return path
    return None


def sources(root: Path) -> list[Path]:
    """What the build depends on; tests are built by `make native-test`."""
    native = root / "native"
    found = [native / "CMakeLists.txt", native / "CMakePresets.json"]
    for folder in ("cmake", "include", "src"):
        found += [p for p in (native / folder).rglob("*") if p.is_file()]
    return found


def jobs() -> int:
    """Compilers to run at once: one a core, as far as memory goes."""
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), memory // UNIT_BYTES))


def build(root: Path, python: Path, cxx: str, run: Callable[[list[str]], None]) -> None:
    """Configures and builds preset `host` with the CMake and the PyTorch of an environment."""
    tools = python.parent
    run([
        str(tools / "cmake"), "-S", str(root / "native"), "--preset", "host", f"-DCMAKE_CXX_COMPILER={cxx}",
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", f"-DPython3_EXECUTABLE={python}",
        f"-DROUSE_WERROR={'ON' if os.environ.get('ROUSE_WERROR') else 'OFF'}",
    ])  # fmt: skip
    run([str(tools / "cmake"), "--build", str(root / "native/build/host"), "--parallel", str(jobs())])
