"""Triton's perf_analyzer as an outside client: fetched once into a cache folder, run against a mesh, its figures read.

The program is in the wheel tritonclient==2.46.0 for Linux; it needs libcudart of the wheel nvidia-cuda-runtime-cu12
and Debian's libb64, which no wheel has. Without a package index, or apt for that one library, it is `Unobtainable`.
"""

from __future__ import annotations

import csv
import io
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rouse_testkit.fetching import Unobtainable, fetch

VERSION = "2.46.0"
CUDA_RUNTIME = "nvidia-cuda-runtime-cu12==12.9.79"
PROGRAM = "perf_analyzer"
DEBIAN_PACKAGE = "libb64-0d"
LIBRARIES = ("libcudart.so.12", "libb64.so.0d")
FETCH_TIMEOUT_S = 300.0
AR_MAGIC = b"!<arch>\n"
AR_HEADER_BYTES = 60


@dataclass(frozen=True)
class Figures:
    """What perf_analyzer measured at one concurrency; times in microseconds.

    Args:
        requests: requests that it counted.
        throughput: inferences a second.
        p50, p99: of the requests, as the client sees them.
        queue, compute_input, compute_infer, compute_output: of a request on average, as the server tells.
        server_requests, server_inferences, server_executions: as the server counts them.
    """

    requests: int
    throughput: float
    p50: float
    p99: float
    queue: float
    compute_input: float
    compute_infer: float
    compute_output: float
    server_requests: int
    server_inferences: int
    server_executions: int


class PerfAnalyzer:
    """The program in its folder. Get one by `obtain`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def measure(self, model: str, address: str, protocol: str, *arguments: str, timeout_s: float = 150.0) -> Figures:
        """Measures a model at one concurrency.

        Args:
            address: host:port.
            protocol: grpc or http.
            arguments: further arguments of the program.

        Raises AssertionError with what the program said where it fails.
        """
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "figures.csv"
            command = [
                str(self._folder / PROGRAM), "-m", model, "-u", address, "-i", protocol, "-f", str(table), *arguments,
            ]  # fmt: skip
            environment = {**os.environ, "LD_LIBRARY_PATH": str(self._folder)}
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
            )
            assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            return read_figures(table.read_text(), done.stdout)


def read_figures(table: str, text: str) -> Figures:
    """The figures of the one row of perf_analyzer's CSV, and the counts of what it printed."""
    (row,) = csv.DictReader(io.StringIO(table))

    def count(label: str) -> int:
        found = re.findall(rf"{label}: (\d+)", text)
        assert found, f"perf_analyzer says no '{label}':\n{text}"
        return int(found[-1])

    return Figures(
        requests=count("Request count"),
        throughput=float(row["Inferences/Second"]),
        p50=float(row["p50 latency"]),
        p99=float(row["p99 latency"]),
        queue=float(row["Server Queue"]),
        compute_input=float(row["Server Compute Input"]),
        compute_infer=float(row["Server Compute Infer"]),
        compute_output=float(row["Server Compute Output"]),
        server_requests=count("Successful request count"),
        server_inferences=count("Inference count"),
        server_executions=count("Execution count"),
    )


def obtain() -> PerfAnalyzer:
    """The program, out of the cache or fetched. Raises Unobtainable."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "rouse" / f"{PROGRAM}-{VERSION}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
            _fetch(Path(fresh))
            try:
                (Path(fresh) / "bin").rename(folder)
            except OSError:  # somebody else was faster
                if not folder.exists():
                    raise
    missing = _missing_libraries(folder)
    if missing:
        raise Unobtainable(f"{PROGRAM} does not run here: {missing}")
    return PerfAnalyzer(folder)


def _fetch(folder: Path) -> None:
    """Puts the program and its libraries into `folder`/bin."""
    into = folder / "bin"
    into.mkdir()
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    platform = ["--only-binary", ":all:", "--platform", "manylinux1_x86_64", "--platform", "manylinux2014_x86_64"]
    fetch([*pip, *platform, f"tritonclient=={VERSION}", CUDA_RUNTIME], folder, FETCH_TIMEOUT_S)
    if shutil.which("apt-get") is None:
        raise Unobtainable(f"{DEBIAN_PACKAGE} is needed and there is no apt-get to download it with")
    fetch(["apt-get", "download", DEBIAN_PACKAGE], folder, FETCH_TIMEOUT_S)
    wanted = {PROGRAM, *LIBRARIES}
    for name, data in _contents(folder):
        if name in wanted:
            (into / name).write_bytes(data)
            wanted.discard(name)
    if wanted:
        raise Unobtainable(f"the packages have no {', '.join(sorted(wanted))}")
    program = into / PROGRAM
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def _contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the files in the wheels and the Debian package of a folder; symbolic links as what they
    point at within the package."""
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                name = Path(entry.filename).name
                if name == PROGRAM or name in LIBRARIES:
                    yield name, archive.read(entry)
    for package in folder.glob("*.deb"):
        with tarfile.open(fileobj=io.BytesIO(_data_of(package.read_bytes()))) as archive:
            for member in archive.getmembers():
                if Path(member.name).name in LIBRARIES:
                    file = archive.extractfile(member)
                    if file is not None:
                        yield Path(member.name).name, file.read()


def _data_of(package: bytes) -> bytes:
    """The uncompressed data archive within a Debian package, which is an ar archive."""
    assert package.startswith(AR_MAGIC), "this is no Debian package"
    position = len(AR_MAGIC)
    while position < len(package):
        header = package[position : position + AR_HEADER_BYTES]
        name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
        position += AR_HEADER_BYTES
        if name == "data.tar.xz":
            return lzma.decompress(package[position : position + size])
        position += size + size % 2
    raise Unobtainable(f"{DEBIAN_PACKAGE} is packed in a way that is not read here")


def _missing_libraries(folder: Path) -> str:
    """What the dynamic linker does not find; empty where the program can start."""
    try:
        done = subprocess.run(
            [str(folder / PROGRAM), "--version"],
            env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip()[-500:]
