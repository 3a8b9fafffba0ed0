"""A process that has imported what models need, and forks instances off itself.

Importing PyTorch and transformers takes seconds and hundreds of MiB; a fork takes milliseconds and shares those
pages. This is the "reserved empty instance" of AsyFunc (section 5.2), one for all functions of a node. It runs no
user code, has one thread, and never starts gRPC, so that forking it is safe.

It speaks with the coordinator over a sequenced-packet socket at its standard input, one JSON object a message:
in `{"fork": ID, "environment": {…}}` with the descriptors that the instance prints to and reads from; out
`{"ready": true}`, `{"forked": ID, "pid": PID}` and `{"exited": PID, "code": CODE}`, the code negative for a signal.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from typing import Any

from rouse_common.lifecycle import die_with_parent

MAX_MESSAGE_BYTES = 64 * 1024
TORCH, TRANSFORMERS = "torch", "transformers"


def main(kind: str) -> int:
    """Serves until the coordinator is gone; in a forked child, runs the instance. Returns the exit code."""
    die_with_parent(signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _import(kind)
    # Collected and set aside, so that the collector of a child does not touch, and thereby copy, shared pages.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=0) as control:
        child = _serve(control)
    if child is None:
        return 0
    _become(*child)
    process = importlib.import_module("rouse_runtime.process")
    return int(process.main())


def _import(kind: str) -> None:
    for module in ("rouse_runtime.process", "rouse_runtime.arrays", "rouse_runtime.handlers.python", "torch"):
        importlib.import_module(module)
    if kind == TRANSFORMERS:
        importlib.import_module("rouse_runtime.handlers.huggingface").prepare()


def _serve(control: socket.socket) -> tuple[dict[str, str], list[int]] | None:
    """Forks on request. Returns in every child with what it is to run, and at the end, with None."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    _send(control, {"ready": True})
    sources: list[Any] = [control, woken]
    while True:
        readable, _, _ = select.select(sources, [], [])
        if woken in readable:
            os.read(woken, 4096)
            _reap(control)
        if control not in readable:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 2)
        if not data:
            return None
        request = json.loads(data)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(woken)
            os.close(wake)
            return request["environment"], descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        _send(control, {"forked": request["fork"], "pid": pid})


def _reap(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _send(control, {"exited": pid, "code": os.waitstatus_to_exitcode(status)})


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    try:
        control.send(json.dumps(message).encode())
    except BrokenPipeError:
        sys.exit(0)  # the coordinator is gone, and all of us with it


def _become(environment: dict[str, str], descriptors: list[int]) -> None:
    """Makes of a fork what a process of its own would be."""
    os.setsid()
    printing, reading = descriptors
    os.dup2(reading, 0)
    os.dup2(printing, 1)
    os.dup2(printing, 2)
    os.close(printing)
    os.close(reading)
    kept = {
        name: value for name, value in os.environ.items() if name.startswith(("HF_", "TRANSFORMERS_", "TOKENIZERS_"))
    }
    os.environ.clear()
    os.environ.update(kept | environment)
    # `random` sees to it itself; numpy's global generator would be the same in every fork.
    importlib.import_module("numpy").random.seed()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
