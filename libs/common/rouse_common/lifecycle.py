"""Start and stop of a service process: config, logs, tracing, event loop, signals, drain."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from rouse_common import logs, metrics, telemetry
from rouse_common.config import ConfigError, ServiceConfig, load

LOG = logging.getLogger(__name__)
PARENT_ENV = "ROUSE_PARENT_PID"
PR_SET_PDEATHSIG = 1


class App(Protocol):
    """A service put together."""

    async def run(self, ready: Callable[[str], Awaitable[None]], stopping: asyncio.Event) -> None:
        """Starts, calls `ready(address)` once it serves, and returns after `stopping` is set and it has
        drained. An exception ends the process with code 1."""
        ...


C = TypeVar("C", bound=ServiceConfig)


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Ends this process by a signal when its parent dies, where a parent said so (Linux; env ROUSE_PARENT_PID)."""
    parent = os.environ.get(PARENT_ENV)
    if not parent:
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before we asked
        sys.exit(1)


def main(service: str, config_type: type[C], make: Callable[[C], App], argv: list[str] | None = None) -> int:
    """The `__main__` of a service. Returns its exit code: 0 stopped, 1 failed, 2 bad configuration.

    The line `ready ADDRESS` on standard output says that it serves.
    """
    try:
        config = load(config_type, service, sys.argv[1:] if argv is None else argv, os.environ)
        config.check_tls()
        return _start(service, config, make)
    except ConfigError as error:
        print(f"rouse-{service}: {error}", file=sys.stderr)
        return 2


def _start(service: str, config: C, make: Callable[[C], App]) -> int:
    die_with_parent()
    logs.configure(service, config.log_level)
    provider = telemetry.configure(service, otlp_endpoint=config.otlp_endpoint, trace_dir=config.trace_dir)
    try:
        metrics.serve(config.metrics_listen)
    except OSError as error:
        LOG.error("%s cannot serve metrics on %s: %s", service, config.metrics_listen, error)
        return 1
    try:
        return _run(service, make(config))
    finally:
        provider.shutdown()


def _run(service: str, app: App) -> int:
    async def body() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)

        async def ready(address: str) -> None:
            # What was imported stays: a full collection that looks at it all stops a service for a tenth of a second.
            gc.freeze()
            LOG.info("%s serves on %s", service, address)
            print(f"ready {address}", flush=True)

        await app.run(ready, stopping)

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(body())
    except BaseException as error:
        LOG.error("%s ends: %s", service, _summary(error), exc_info=error)
        return 1
    LOG.info("%s stopped", service)
    return 0


def _summary(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_summary(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the fastest event loop that is there, for asyncio.Runner."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None
