"""Template processes that instances are forked off, as seen from the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

from rouse_common.child import exit_of
from rouse_common.clock import Clock
from rouse_common.lifecycle import PARENT_ENV
from rouse_contracts.functions import ArtefactFormat, FunctionVersion
from rouse_coordinator.lines import LinePump, read_pipe

LOG = logging.getLogger(__name__)

TORCH, TRANSFORMERS = "torch", "transformers"
MAX_MESSAGE_BYTES = 64 * 1024


class TemplateLost(Exception):
    """A template that is gone or cannot be reached."""


def kind_for(version: FunctionVersion) -> str | None:
    """The template that has what a version needs; None where starting afresh is quicker and smaller."""
    if version.format == ArtefactFormat.ARTEFACT_FORMAT_HUGGING_FACE:
        return TRANSFORMERS
    return TORCH if version.weights_bytes else None


class Template:
    """One template process.

    Args:
        environment: what the template itself sees.
    """

    def __init__(self, kind: str, environment: Mapping[str, str], clock: Clock) -> None:
        self.kind = kind
        self._numbers = itertools.count(1)
        self._forking: dict[int, asyncio.Future[int]] = {}
        self._children: dict[int, asyncio.Future[int]] = {}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._control: socket.socket | None = ours
        with theirs:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                (sys.executable, "-I", "-m", "rouse_runtime.template", kind),
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                env={**environment, PARENT_ENV: str(os.getpid())},
                cwd="/",
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._lines = asyncio.create_task(read_pipe(self._process.stdout, LinePump("-", f"template-{kind}", clock)))
        self._exit = exit_of(self._process)
        asyncio.get_running_loop().add_reader(ours, self._receive)

    @property
    def alive(self) -> bool:
        return self._control is not None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def fork(self, environment: Mapping[str, str], output: int, reading: int) -> tuple[int, asyncio.Future[int]]:
        """A new instance: its pid, and its exit code to come. Waits for a template that is still importing.

        Args:
            output, reading: descriptors that the instance prints to and reads from.

        Raises TemplateLost. A cancelled call leaves no process.
        """
        if self._control is None:
            raise TemplateLost(f"the {self.kind} template is gone")
        number = next(self._numbers)
        message = json.dumps({"fork": number, "environment": {**environment, PARENT_ENV: str(self.pid)}}).encode()
        try:
            socket.send_fds(self._control, [message], [output, reading])
        except OSError as error:
            raise TemplateLost(f"the {self.kind} template takes no requests: {error.strerror}") from error
        future = self._forking[number] = asyncio.get_running_loop().create_future()
        pid = await future
        return pid, self._children[pid]

    async def close(self) -> None:
        """Ends the template; its instances are to be ended before."""
        self._lost()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._exit
        self._lines.cancel()
        await asyncio.wait([self._lines])

    def _receive(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            LOG.warning("template ended kind=%s pid=%d instances=%d", self.kind, self.pid, len(self._children))
            self._lost()
            return
        message = json.loads(data)
        if "ready" in message:
            LOG.info("template ready kind=%s pid=%d", self.kind, self.pid)
        elif "forked" in message:
            self._forked(message["forked"], message["pid"])
        else:
            exit_code = self._children.pop(message["exited"], None)
            if exit_code is not None:
                exit_code.set_result(message["code"])

    def _forked(self, number: int, pid: int) -> None:
        self._children[pid] = asyncio.get_running_loop().create_future()
        waiting = self._forking.pop(number)
        if waiting.cancelled():
            _kill(pid)
        else:
            waiting.set_result(pid)

    def _lost(self) -> None:
        """The kernel ends a template's instances with it."""
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._control = None
        for waiting in self._forking.values():
            if not waiting.done():
                waiting.set_exception(TemplateLost(f"the {self.kind} template ended"))
        for pid, exit_code in self._children.items():
            _kill(pid)
            exit_code.set_result(-signal.SIGKILL)
        self._forking.clear()
        self._children.clear()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Templates:
    """The node's templates, each started when it is first needed and again after it was lost."""

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        self._environment, self._clock = environment, clock
        self._templates: dict[str, Template] = {}

    def get(self, kind: str) -> Template:
        """A running template that has at least what `kind` needs. Raises OSError where none can be started."""
        for candidate in (TRANSFORMERS, kind):
            template = self._templates.get(candidate)
            if template is not None and template.alive:
                return template
        template = self._templates[kind] = Template(kind, self._environment, self._clock)
        LOG.info("template started kind=%s pid=%d", kind, template.pid)
        return template

    async def close(self) -> None:
        await asyncio.gather(*(template.close() for template in self._templates.values()))
        self._templates.clear()
