"""One function instance from start to end: assignment, loading, serving."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rouse_common import telemetry
from rouse_common.config import ConfigError
from rouse_common.lifecycle import die_with_parent, loop_factory
from rouse_common.rpc import Channels, RpcServer, call
from rouse_contracts import coordination, device
from rouse_contracts.links import executor_link
from rouse_runtime import output
from rouse_runtime.config import InstanceConfig, read
from rouse_runtime.confinement import confine, memory_limit, prepare
from rouse_runtime.executor import Executor
from rouse_runtime.handlers import Handler
from rouse_runtime.isolation import IsolationError
from rouse_runtime.loading import Loaded, load
from rouse_runtime.service import ExecutorServicer, execute_link
from rouse_runtime.watchdog import Watchdog
from rouse_runtime.worker import Worker

LOG = logging.getLogger(__name__)

PR_SET_NAME = 15
EXIT_BAD_CONFIG = 2
EXIT_LOAD_FAILED = 3
EXIT_NOT_ISOLATED = 4
# The assignment comes when the artefact is on the node, which the coordinator bounds; this only ends a process that
# the coordinator forgot.
ASSIGNMENT_TIMEOUT_S = 3600.0
REPORT_TIMEOUT_S = 10.0


def main() -> int:
    """The `__main__` of an instance. Exit codes: 0 stopped, 1 failed, 2 bad configuration, 3 not loaded, 4 not
    isolated, 70 hung."""
    try:
        config = read(os.environ)
    except ConfigError as error:
        print(f"rouse-instance: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIG
    # A function that never lets go of the interpreter could not react to anything gentler.
    die_with_parent(signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        spans, isolation = confine(config)
    except (IsolationError, OSError) as error:
        print(f"rouse-instance: {error}", file=sys.stderr)
        return EXIT_NOT_ISOLATED
    ctypes.CDLL(None).prctl(PR_SET_NAME, config.function.encode()[:15], 0, 0, 0)  # as `ps` and `top` show it
    faulthandler.enable(file=2)
    printed = output.configure(config.function, config.id, config.log_level)
    provider = telemetry.configure(output.SERVICE, otlp_endpoint=config.otlp_endpoint, kept=spans)

    def finish_output() -> None:
        for stream in printed:
            stream.finish()

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code = runner.run(Instance(config, isolation, finish_output).run())
    except Exception as error:
        LOG.error("instance failed: %s", error, exc_info=error)
        code = 1
    finish_output()
    provider.shutdown()
    logging.shutdown()
    os._exit(code)  # a thread of user code that never ends does not keep the process


class Instance:
    """Puts the parts of an instance together."""

    def __init__(self, config: InstanceConfig, isolation: str, finish_output: Callable[[], None]) -> None:
        self._config, self._isolation, self._finish_output = config, isolation, finish_output
        self._socket = Path(config.socket)
        self._max_bytes = config.max_message_mib << 20
        self._serving = False
        self._worker = Worker("function")

    async def run(self) -> int:
        """Returns the exit code. Raises RouseError where the coordinator does not answer as it should."""
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        channels = Channels(self._max_bytes)
        try:
            stub = coordination.InstanceServiceStub(channels.get(self._config.coordinator))
            running = asyncio.create_task(self._serve(stub, stopping))
            stopped = asyncio.create_task(stopping.wait())
            await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and not self._serving:
                return 0  # stopped while it loaded: user code may never return, and need not
            stopped.cancel()
            return await running
        finally:
            for socket in (self._socket, Path(executor_link(str(self._socket)))):
                socket.unlink(missing_ok=True)
            await channels.close()

    async def _serve(self, stub: coordination.InstanceServiceStub, stopping: asyncio.Event) -> int:
        started = time.perf_counter()
        prepared = asyncio.create_task(self._worker.run(prepare, self._config.format))
        request = coordination.GetAssignmentRequest(instance_id=self._config.id, token=self._config.token)
        assignment = await call(stub.GetAssignment, request, timeout_s=ASSIGNMENT_TIMEOUT_S, wait_for_ready=True)
        await prepared
        result = await self._worker.run(self._load, assignment)
        load_ms = (time.perf_counter() - started) * 1000
        if isinstance(result, str):
            LOG.error("not loaded: %s", result)
            await self._report(stub, error=result, load_ms=load_ms)
            return EXIT_LOAD_FAILED
        executor = self._executor(result)
        server = RpcServer(f"unix:{self._socket}", max_message_bytes=self._max_bytes)
        server.add(device.add_ExecutorServiceServicer_to_server, ExecutorServicer(executor), device.DESCRIPTOR)
        link = execute_link(executor, self._worker, executor_link(f"unix:{self._socket}"), self._max_bytes)
        await link.start()
        await server.start()
        self._serving = True
        await server.set_serving(True)
        await self._report(stub, load_ms=load_ms)
        LOG.info("loaded version=%s load_ms=%.0f", assignment.version.version_id, load_ms)
        await stopping.wait()
        await server.set_serving(False)
        await link.stop(self._config.drain_s)
        await server.stop(self._config.drain_s)
        await self._finish(executor, result.handler)
        return 0

    async def _finish(self, executor: Executor, handler: Handler) -> None:
        """Lets a model that asks for it tidy up, unless it is still at work."""
        close = getattr(handler, "close", None)
        if close is None or executor.busy:
            return
        try:
            await asyncio.wait_for(self._worker.run(close), self._config.drain_s)
        except Exception as error:
            LOG.warning("tidying up failed: %s", error, exc_info=error)

    async def _report(self, stub: coordination.InstanceServiceStub, *, load_ms: float, error: str = "") -> None:
        report = coordination.ReportLoadedRequest(
            instance_id=self._config.id,
            token=self._config.token,
            address="" if error else f"unix:{self._socket}",
            error=error,
            load_ms=load_ms,
            isolation=self._isolation,
        )
        await call(stub.ReportLoaded, report, timeout_s=REPORT_TIMEOUT_S, wait_for_ready=True)

    def _executor(self, loaded: Loaded) -> Executor:
        return Executor(
            loaded.assignment.version,
            loaded.assignment.artefact_path,
            self._config.id,
            loaded.handler,
            loaded.weights,
            self._worker,
            Watchdog(),
            self._config.hang_grace_s,
            self._finish_output,
        )

    # ---- In the worker thread ------------------------------------------------------------------

    def _load(self, assignment: coordination.GetAssignmentResponse) -> Loaded | str:
        """The loaded function, or in one line why it cannot be loaded."""
        try:
            return load(assignment, memory_limit(self._config))
        finally:
            self._finish_output()
