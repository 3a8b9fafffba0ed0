"""Processes of instances: start, limits, signals, what is left when one ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rouse_common.child import exit_of
from rouse_common.lifecycle import PARENT_ENV
from rouse_contracts.functions import ArtefactFormat, FunctionVersion
from rouse_coordinator.adapters.quarters import Quarters, Users
from rouse_coordinator.adapters.templates import TemplateLost, Templates, kind_for
from rouse_coordinator.config import CoordinatorConfig
from rouse_coordinator.lines import LinePump, read_pipe

LOG = logging.getLogger(__name__)

# What an instance may see of our environment. No credentials, no proxies, no Python settings. ROUSE_MESH names the
# embedded mesh that a process belongs to.
PASSED_ON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "ROUSE_MESH",
)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Threads that wait for their siblings sleep instead of spinning: instances share cores with each other and with the
# node's services, and a spinning thread takes the core that its sibling needs (2.5 times slower on two busy cores).
WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
# -I: neither the working directory nor PYTHON* variables decide what is imported.
COMMAND = (sys.executable, "-I", "-m", "rouse_runtime")
FORMATS = {
    ArtefactFormat.ARTEFACT_FORMAT_HUGGING_FACE: "HUGGING_FACE",
    ArtefactFormat.ARTEFACT_FORMAT_PYTHON: "PYTHON",
    ArtefactFormat.ARTEFACT_FORMAT_TORCH_EXPORT: "TORCH_EXPORT",
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


def base_environment(ours: Mapping[str, str]) -> dict[str, str]:
    """What of our environment an instance may see."""
    return {name: ours[name] for name in PASSED_ON if name in ours} | WAITING


def template_environment(ours: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a template; what its libraries read when they are imported holds for all instances."""
    return {**base_environment(ours), **dict.fromkeys(THREAD_VARIABLES, "1")}


def environment(
    launch: Launch, config: CoordinatorConfig, quarters: Quarters, ours: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of an instance."""
    spec = launch.version.spec
    threads = str(spec.resources.threads or 1)
    return {
        **base_environment(ours),
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
        "ROUSE_INSTANCE_ISOLATION": config.isolation,
        "ROUSE_INSTANCE_FOLDER": str(quarters.path),
        "ROUSE_INSTANCE_USER": str(quarters.user),
        "ROUSE_INSTANCE_PORTS": config.instance_ports,
        "ROUSE_INSTANCE_TMP_MIB": str(config.instance_tmp_mib),
        "ROUSE_INSTANCE_PROCESSES": str(config.instance_processes),
        "ROUSE_INSTANCE_FILES": str(config.instance_files),
        "ROUSE_INSTANCE_MEMORY_MIB": str(config.instance_memory_mib),
    }


class InstanceProcess:
    """One running instance, in a session and process group of its own.

    Args:
        exit_code: to come; negative for a signal.
        output: the reading end of the pipe that it prints to.
    """

    def __init__(
        self, pid: int, exit_code: asyncio.Future[int], output: IO[bytes], pump: LinePump, quarters: Quarters
    ) -> None:
        self.pid, self._exit, self._pump, self.quarters = pid, exit_code, pump, quarters
        self._lines = asyncio.create_task(read_pipe(output, pump))

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it runs."""
        return self._exit.result() if self._exit.done() else None

    @property
    def last_lines(self) -> Sequence[str]:
        return self._pump.last_lines

    async def wait(self) -> int:
        """The exit code, as soon as the process is gone; may be awaited by several."""
        return await asyncio.shield(self._exit)

    async def ended(self) -> int:
        """As `wait`; then ends what the process started, reads its last lines and removes its folder."""
        code = await self.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        done, _ = await asyncio.wait([self._lines], timeout=PIPE_DRAIN_S)
        if done:
            self._lines.result()
        self._lines.cancel()
        await asyncio.to_thread(self.quarters.remove)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process group; nothing where the process is gone."""
        if self._exit.done():
            return
        with contextlib.suppress(ProcessLookupError):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:  # forked a moment ago, and no leader of a group yet
                os.kill(self.pid, number)


class Launcher:
    """Starts instances: forked off a template where that is quicker, else as processes from scratch."""

    def __init__(self, config: CoordinatorConfig, templates: Templates | None) -> None:
        self._config, self._templates = config, templates
        self._isolated = config.isolation != "off"
        self._users = Users(config.first_user if self._isolated else 0, config.max_instances)

    async def start(self, launch: Launch, pump: LinePump) -> InstanceProcess:
        """The instance waits for its grants, where it is isolated.

        Raises OSError where the machine refuses to. A cancelled call leaves neither process nor folder.
        """
        user = self._users.take()
        try:
            path = Path(self._config.runtime_dir) / launch.instance_id
            quarters = Quarters(path, user, isolated=self._isolated)
            try:
                process = await self._start(launch, pump, quarters)
            except BaseException:
                quarters.remove()
                raise
            quarters.started()
        except BaseException:
            self._users.give_back(user)
            raise
        return process

    def ended(self, process: InstanceProcess) -> None:
        """The process is gone: its user may be another's."""
        self._users.give_back(process.quarters.user)

    async def _start(self, launch: Launch, pump: LinePump, quarters: Quarters) -> InstanceProcess:
        kind = kind_for(launch.version) if self._templates else None
        if kind is not None:
            try:
                return await self._fork(kind, launch, pump, quarters)
            except TemplateLost as error:
                LOG.warning("starting without a template instance=%s reason=%s", launch.instance_id, error)
        return self._spawn(launch, pump, quarters)

    async def _fork(self, kind: str, launch: Launch, pump: LinePump, quarters: Quarters) -> InstanceProcess:
        assert self._templates is not None
        template = self._templates.get(kind)
        reading, writing = os.pipe2(os.O_CLOEXEC)
        output = os.fdopen(reading, "rb", buffering=0)
        try:
            pid, exit_code = await template.fork(
                environment(launch, self._config, quarters, os.environ), writing, quarters.reading
            )
        except BaseException:
            output.close()
            raise
        finally:
            os.close(writing)
        return InstanceProcess(pid, exit_code, output, pump, quarters)

    def _spawn(self, launch: Launch, pump: LinePump, quarters: Quarters) -> InstanceProcess:
        """On the event loop's thread: the kernel ends an instance when the thread that made it ends.

        By `subprocess`, which uses vfork: the loop's own way is to fork, and gRPC's fork handlers then run in the
        child, which can crash it.
        """
        process = subprocess.Popen(
            COMMAND,
            stdin=quarters.reading,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env=environment(launch, self._config, quarters, os.environ),
            cwd="/",
            start_new_session=True,
        )
        assert process.stdout is not None
        return InstanceProcess(process.pid, exit_of(process), process.stdout, pump, quarters)


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
