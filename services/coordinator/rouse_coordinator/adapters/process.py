"""Processes of instances: start, limits, signals, what is left when one ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rouse_common.lifecycle import PARENT_ENV
from rouse_contracts.functions import ArtefactFormat, FunctionVersion
from rouse_coordinator.config import CoordinatorConfig
from rouse_coordinator.lines import LinePump

# What an instance may see of our environment. No credentials, no proxies, no Python settings.
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# -I: neither the working directory nor PYTHON* variables decide what is imported.
COMMAND = (sys.executable, "-I", "-m", "rouse_runtime")
FORMATS = {
    ArtefactFormat.ARTEFACT_FORMAT_HUGGING_FACE: "HUGGING_FACE",
    ArtefactFormat.ARTEFACT_FORMAT_PYTHON: "PYTHON",
}
# After the process itself is gone, what it started is killed, so its pipe ends soon.
PIPE_DRAIN_S = 2.0
EXIT_LOAD_FAILED = 3
EXIT_HUNG = 70


@dataclass(frozen=True)
class Launch:
    """What a process is started with."""

    instance_id: str
    token: str
    version: FunctionVersion
    coordinator: str


def environment(launch: Launch, config: CoordinatorConfig, ours: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of an instance."""
    spec = launch.version.spec
    threads = str(spec.resources.threads or 1)
    return {
        **{name: ours[name] for name in PASSED_ON if name in ours},
        **dict.fromkeys(THREAD_VARIABLES, threads),
        PARENT_ENV: str(os.getpid()),
        "ROUSE_COORDINATOR": launch.coordinator,
        "ROUSE_INSTANCE_ID": launch.instance_id,
        "ROUSE_INSTANCE_TOKEN": launch.token,
        "ROUSE_INSTANCE_FUNCTION": spec.name,
        "ROUSE_INSTANCE_FORMAT": FORMATS.get(launch.version.format, ""),
        "ROUSE_INSTANCE_LOG_LEVEL": config.log_level,
        "ROUSE_INSTANCE_OTLP_ENDPOINT": config.otlp_endpoint,
        "ROUSE_INSTANCE_TRACE_DIR": config.trace_dir,
        "ROUSE_INSTANCE_MAX_MESSAGE_MIB": str(config.max_message_mib),
        "ROUSE_INSTANCE_HANG_GRACE_S": str(config.hang_grace_s),
    }


class InstanceProcess:
    """One running instance, in a session and process group of its own."""

    def __init__(self, process: asyncio.subprocess.Process, pump: LinePump, socket: Path) -> None:
        self._process, self._pump, self._socket = process, pump, socket
        assert process.stdout is not None
        self._lines = asyncio.create_task(pump.run(process.stdout))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """The exit code, negative for a signal, as soon as the process is gone; may be awaited by several."""
        return await self._process.wait()

    async def ended(self) -> int:
        """As `wait`; then ends what the process started, reads its last lines and removes its socket."""
        code = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        done, _ = await asyncio.wait([self._lines], timeout=PIPE_DRAIN_S)
        if done:
            self._lines.result()
        self._lines.cancel()
        self._socket.unlink(missing_ok=True)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process group; nothing where the process is gone."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    @property
    def last_lines(self) -> Sequence[str]:
        return self._pump.last_lines


async def launch_instance(launch: Launch, config: CoordinatorConfig, pump: LinePump, socket: Path) -> InstanceProcess:
    """Starts an instance. Raises OSError where the machine refuses to.

    To be called on the event loop's thread: the kernel ends an instance when the thread that made it ends.
    """
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(launch, config, os.environ),
        cwd="/",
        start_new_session=True,
    )
    return InstanceProcess(process, pump, socket)


def limit_memory(pid: int, limit_bytes: int, weights_bytes: int) -> None:
    """Limits what a process may allocate to `limit_bytes`; 0 is no limit.

    Weights are mapped into the process while it loads and counted by the kernel then, so they come on top; the
    device's copy is not the process's own. A process that is gone already is left alone.
    """
    if limit_bytes:
        total = limit_bytes + weights_bytes
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_DATA, (total, total))


def explain(code: int, last_lines: Sequence[str]) -> str:
    """How a process ended that nobody asked to end, with its last words."""
    if code == -signal.SIGKILL:
        how = "its process was killed (SIGKILL); the machine may be out of memory"
    elif code == -signal.SIGALRM or code == EXIT_HUNG:
        how = "its process was ended because a request ran far past its deadline"
    elif code < 0:
        how = f"its process died of {_signal_name(-code)}"
    else:
        how = f"its process ended with exit code {code}"
    words = " | ".join(line.strip() for line in last_lines[-20:])
    return f"{how}; last lines: {words}" if words else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
