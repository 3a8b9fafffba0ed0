"""Builds and runs the native tests: GoogleTest as the machine has it, else Debian's package without installing it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rouse_testkit.fetching import Unobtainable, fetch
from rouse_testkit.source import ROOT

PACKAGE = "libgtest-dev"
HEADER = "usr/include/gtest/gtest.h"
FETCH_TIMEOUT_S = 120.0
BUILD_TIMEOUT_S = 1500.0
TEST_TIMEOUT_S = 900.0
# A compiler that reads PyTorch's headers takes so much; slow machines have two at once all the same.
UNIT_BYTES = 1536 << 20
MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
JOBS = str(max(2, min(len(os.sched_getaffinity(0)), MEMORY_BYTES // UNIT_BYTES)))
TOOLS = Path(sys.executable).parent


def googletest() -> Path | None:
    """A folder with GoogleTest for ROUSE_GTEST_DIR, out of the cache or fetched; None: the system has it.

    Raises Unobtainable.
    """
    if (Path("/") / HEADER).exists():
        return None
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "rouse" / PACKAGE
    if (folder / HEADER).exists():
        return folder / "usr"
    missing = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        raise Unobtainable(f"{PACKAGE} is not installed and there is no {missing[0]} to get it with")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
        fetch(["apt-get", "download", PACKAGE], Path(fresh), FETCH_TIMEOUT_S)
        (package,) = Path(fresh).glob("*.deb")
        fetch(["dpkg-deb", "-x", str(package), "tree"], Path(fresh), FETCH_TIMEOUT_S)
        try:
            (Path(fresh) / "tree").rename(folder)
        except OSError:  # somebody else was faster
            if not folder.exists():
                raise
    return folder / "usr"


def build_and_test(preset: str) -> str:
    """Builds a preset of native/CMakePresets.json with its tests and runs them. Returns what ctest said.

    Raises Unobtainable without a compiler or GoogleTest; AssertionError with the output where a step fails.
    """
    build(preset)
    return _step([str(TOOLS / "ctest"), "--preset", preset], ROOT / "native", TEST_TIMEOUT_S)


def build(preset: str, *targets: str) -> Path:
    """Builds a preset of native/CMakePresets.json, or some targets of it. Returns its folder. Raises as
    build_and_test."""
    if shutil.which("c++") is None:
        raise Unobtainable("there is no C++ compiler")
    configure = [
        str(TOOLS / "cmake"), "-S", "native", "--preset", preset, f"-DCMAKE_MAKE_PROGRAM={TOOLS / 'ninja'}",
        f"-DCMAKE_CXX_COMPILER={shutil.which('c++')}", f"-DPython3_EXECUTABLE={sys.executable}",
    ]  # fmt: skip
    folder = googletest()
    if folder is not None:
        configure.append(f"-DROUSE_GTEST_DIR={folder}")
    _step(configure, ROOT, BUILD_TIMEOUT_S)
    command = [str(TOOLS / "cmake"), "--build", "--preset", preset, "--parallel", JOBS]
    _step([*command, "--target", *targets] if targets else command, ROOT / "native", BUILD_TIMEOUT_S)
    return ROOT / "native/build" / ("host" if preset == "tests" else preset)


def _step(command: list[str], folder: Path, timeout_s: float) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"`{' '.join(command)}` took longer than {timeout_s:.0f} s:\n{error.stdout!r}") from error
    assert done.returncode == 0, f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout[-20000:]}"
    return done.stdout
