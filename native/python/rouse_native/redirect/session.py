"""Sessions: this process's connection to the executor that runs its operators."""

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch

from rouse_native import _redirect

PROGRAM = Path(__file__).parents[1] / "bin" / "rouse-session"
RING_BYTES = 1 << 22
LIMIT_BYTES = 1 << 36
PATIENCE_MS = 600_000


class Session:
    """A connection, and the executor process where it was started for it. A process has one at a time."""

    def __init__(self, process: subprocess.Popen[bytes] | None = None) -> None:
        self._process = process

    @property
    def pid(self) -> int | None:
        """Of the executor, where this process started it."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        """Ends the connection; tensors on the device lose their memory."""
        _redirect.disconnect()
        if self._process:
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def attach(rings: int, peer: int, patience_ms: int = PATIENCE_MS) -> Session:
    """Connects over the rings in the memfd `rings`; the stream socket `peer` hangs up when the executor ends.

    Both descriptors are taken over. An answer that takes longer than `patience_ms` ends the connection. Raises
    RuntimeError where the memfd does not hold rings of this version.
    """
    _redirect.connect(rings, peer, patience_ms)
    return Session()


def spawn_local(
    threads: int = 1,
    limit_bytes: int = LIMIT_BYTES,
    ring_bytes: int = RING_BYTES,
    patience_ms: int = PATIENCE_MS,
    libraries: tuple[str, ...] = (),
    tapes: Path | None = None,
    model: Path | None = None,
    device: str = "cpu",
) -> Session:
    """Starts an executor for this process alone and connects to it.

    `threads` compute; the session holds at most `limit_bytes`. `libraries` are shared objects that register custom
    operators. `tapes` is a folder that tapes are read from and written to; `model` a file of weights, mapped
    at the lowest address of models, for tensor_at(). `device` is what the executor computes on, as PyTorch names it
    ("cuda:0"); it ends, saying why, where its PyTorch has none, and `model` is for the CPU. Raises FileNotFoundError
    where the native core was not built.
    """
    if not PROGRAM.exists():
        raise FileNotFoundError(f"{PROGRAM} is not there: build the native core with `make setup`")
    options = [f"--{name}={path}" for name, path in (("tapes", tapes), ("model", model)) if path is not None]
    options.append(f"--device={device}")
    rings = _redirect.make_rings(ring_bytes)
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [str(PROGRAM), str(rings), str(theirs.fileno()), str(threads), str(limit_bytes), *options, *libraries],
            pass_fds=(rings, theirs.fileno()),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
    except BaseException:
        os.close(rings)
        raise
    finally:
        theirs.close()
    _redirect.connect(rings, ours.detach(), patience_ms)
    return Session(process)


def connected() -> bool:
    return bool(_redirect.connected())


def disconnect() -> None:
    _redirect.disconnect()


def synchronize() -> None:
    """Waits for all that was sent; raises the error of an operator that failed."""
    _redirect.synchronize()


def tensor_at(address: int, dtype: torch.dtype, sizes: Sequence[int]) -> torch.Tensor:
    """A contiguous tensor over the executor's memory at `address`, within a range that is mapped for the session.

    Nothing is copied, and nothing waits: where the executor has no such memory, the next wait says so. Raises
    ValueError for an address below those of models and for sizes that cannot be.
    """
    return _redirect.tensor_at(address, dtype, list(sizes))


def counters() -> dict[str, int]:
    """Messages, calls, learned (calls that waited to hear what an operator returns), templates, waits, bytes."""
    return dict(_redirect.counters())


@contextmanager
def blocking() -> Iterator[None]:
    """Within it every operator waits for its end: errors come at the line that made them."""
    _redirect.blocking(True)
    try:
        yield
    finally:
        _redirect.blocking(False)
