"""What every served call leaves behind, whichever way it came: a span, metrics, and a typed error."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import lru_cache

import grpc
from opentelemetry.trace import SpanKind

from rouse_common import metrics, telemetry
from rouse_common.errors import DeadlineExceeded, Internal, RouseError, Unimplemented

LOG = logging.getLogger(__name__)
# A caller that is gone: its call is cancelled, or a stream's generator closed where it stands.
ENDED_BY_CALLER = (asyncio.CancelledError, GeneratorExit)
# Methods are those of our contracts; more than that would be a caller's invention, which nobody serves.
MAX_METHODS = 1024


class _Method:
    """What is the same for every call of a method: its name in parts, its metrics."""

    def __init__(self, system: str, method: str) -> None:
        _, service, self.name = method.split("/")
        self.attributes = {"rpc.system": system, "rpc.service": service, "rpc.method": self.name}
        self.under_way: set[Observed] = set()
        metrics.RPC_IN_FLIGHT.labels(method).set_function(lambda: len(self.under_way))
        self.latency = metrics.RPC_LATENCY.labels(method)
        self.answered = {code: metrics.RPC_REQUESTS.labels(method, code.name) for code in grpc.StatusCode}
        self.well = self.answered[grpc.StatusCode.OK]


_method = lru_cache(MAX_METHODS)(_Method)


class Observed:
    """One call, from `start` to `end`, in the task that serves it.

    Args:
        system: "grpc" or "link".
        method: "/package.Service/Method".
        parent: the trace that it came in.
    """

    __slots__ = ("_method", "_path", "_span", "_started")

    def __init__(self, system: str, method: str, parent: telemetry.Parent) -> None:
        self._path = method
        self._method = _method(system, method)
        # Never detached: each call has a task, and with it a context, of its own; and the generator of a
        # stream whose reader left is closed in another one.
        self._span = telemetry.enter(self._method.name, SpanKind.SERVER, parent, self._method.attributes)
        self._method.under_way.add(self)
        self._started = time.perf_counter()

    def end(self, error: BaseException | None, code: grpc.StatusCode | None = None) -> RouseError | None:
        """Closes the books; the typed error to answer with, None where nobody waits for one.

        Args:
            error: how the call ended; None: well.
            code: its status, where the error does not tell.
        """
        typed = None if error is None or isinstance(error, ENDED_BY_CALLER) or code is not None else self._typed(error)
        if code is None:
            code = grpc.StatusCode.OK if error is None else typed.code if typed else grpc.StatusCode.CANCELLED
        if self._span.is_recording():
            self._span.set_attribute("rpc.grpc.status_code", code.value[0])
            if error is not None:
                telemetry.fail(self._span, error)
            self._span.end()
        self._method.under_way.discard(self)
        self._method.latency.observe(time.perf_counter() - self._started)
        (self._method.well if error is None else self._method.answered[code]).inc()
        return typed

    def _typed(self, error: BaseException) -> RouseError:
        if isinstance(error, RouseError):
            return error
        if isinstance(error, TimeoutError):
            return DeadlineExceeded("DEADLINE_EXCEEDED", f"{self._path} ran out of time")
        if isinstance(error, NotImplementedError):  # what generated code raises for a method without a handler
            return Unimplemented("NOT_SERVED", f"{self._path} is not served here", method=self._path)
        LOG.error("%s failed unexpectedly", self._path, exc_info=error)
        return Internal("INTERNAL_ERROR", f"{self._path} failed unexpectedly; the service's log has the details")
