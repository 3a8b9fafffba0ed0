"""What happens to one request in the worker thread: inputs, the function, outputs; and what went wrong, typed."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rouse_common import telemetry
from rouse_common.errors import Cancelled, Internal, InvalidArgument, RouseError, Unavailable
from rouse_contracts.functions import FunctionVersion
from rouse_contracts.tensors import TensorError
from rouse_runtime.arrays import Codec
from rouse_runtime.failures import BadResult, ExecutorLost, UnknownOutput, describe
from rouse_runtime.handlers import Handler
from rouse_runtime.job import Job, Result
from rouse_runtime.watchdog import Watchdog
from rouse_runtime.worker import Interrupted, Worker

LOG = logging.getLogger(__name__)
END = object()


class Runner:
    """Runs the requests of one loaded function, each by `run` in the worker thread.

    Args:
        folder: of the artefact, whose lines are named in errors.
        names: metadata of errors and spans.
        hang_grace_s: how long a request may run past its deadline before the process is ended.
        finish_output: called after each request, to send unfinished printed lines.
    """

    def __init__(
        self,
        version: FunctionVersion,
        folder: str,
        names: dict[str, Any],
        handler: Handler,
        worker: Worker,
        watchdog: Watchdog,
        hang_grace_s: float,
        finish_output: Callable[[], None],
    ) -> None:
        self._name, self._decoupled = version.spec.name, version.spec.decoupled
        self._folder, self._names = folder, names
        self._handler, self._worker, self._watchdog = handler, worker, watchdog
        self._hang_grace_s, self._finish_output = hang_grace_s, finish_output
        self._codec = Codec(version.spec.signature, handler.casts)
        self._threads = 0

    def run(self, job: Job) -> tuple[Result | None, RouseError | None]:
        """Never raises: the last response, or why there is none."""
        try:
            self._watchdog.begin(
                f"request {job.request.id} ran past its deadline", job.request.time_left_s + self._hang_grace_s
            )
            try:
                return self._answer(job), None
            finally:
                self._watchdog.end()
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            return None, self._typed(error, job)
        finally:
            self._finish_output()

    def _answer(self, job: Job) -> Result:
        started = time.perf_counter()
        inputs = self._codec.read(job.inputs, job.rows)
        job.inputs = b""
        job.input_s = time.perf_counter() - started
        with telemetry.span("execute", device=job.device, request_id=job.request.id, **self._names) as span:
            try:
                with self._inference(job.threads):
                    return self._call(job, inputs)
            finally:
                span.set_attribute("device_ms", round(job.device_s * 1000, 3))

    def _call(self, job: Job, inputs: dict[str, Any]) -> Result:
        result = self._timed(job, self._handler.predict, inputs, job.request)
        if not isinstance(result, Iterator):
            outputs = self._written(job, result)
            if not self._decoupled:
                return job.last(outputs)
            job.put(Result(outputs))
            return job.last(b"")
        if not self._decoupled:
            self._close(job, result)
            raise BadResult(
                "", "predict() returned an iterator, want a dict; say decoupled = true for any number of responses"
            )
        try:
            while (item := self._timed(job, next, result, END)) is not END:
                job.put(Result(self._written(job, item)))
        finally:
            self._close(job, result)
        return job.last(b"")

    def _timed(self, job: Job, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls user code, unless the caller is gone."""
        job.check()
        started = time.perf_counter()
        try:
            return self._worker.call(job, function, *arguments)
        finally:
            job.device_s += time.perf_counter() - started

    def _close(self, job: Job, iterator: Iterator[Any]) -> None:
        """Has a generator run its `finally` blocks."""
        if isinstance(iterator, Generator):
            started = time.perf_counter()
            try:
                self._worker.call(job, iterator.close)
            finally:
                job.device_s += time.perf_counter() - started

    def _written(self, job: Job, result: Any) -> bytes:
        if isinstance(result, AsyncGenerator):
            raise BadResult("", "predict() gave an asynchronous generator; write `async def predict` with `yield`")
        started = time.perf_counter()
        try:
            return self._codec.write(result, job.wanted, job.rows)
        finally:
            job.output_s += time.perf_counter() - started

    def _inference(self, threads: int) -> AbstractContextManager[Any]:
        """Without gradients where the function uses torch at all, which is not imported for those that do not."""
        torch = sys.modules.get("torch")
        if torch is None:
            return nullcontext()
        if self._threads != (threads or 1):
            self._threads = threads or 1
            torch.set_num_threads(self._threads)
        context: AbstractContextManager[Any] = torch.inference_mode()
        return context

    def _typed(self, error: BaseException, job: Job) -> RouseError:
        name, request_id = self._name, job.request.id
        if job.request.cancelled or isinstance(error, Interrupted):
            LOG.info("stopped request=%s device_ms=%.1f: nobody waits for it any more", request_id, job.device_s * 1000)
            return Cancelled("CANCELLED", f"function '{name}' was stopped: nobody waited for it", **self._names)
        if isinstance(error, TensorError):
            return InvalidArgument("BAD_TENSOR", f"function '{name}': {error}", **self._names)
        if isinstance(error, UnknownOutput):
            return InvalidArgument("UNKNOWN_OUTPUT", f"function '{name}': {error}", **self._names)
        if isinstance(error, ExecutorLost):
            LOG.warning("executor lost request=%s: %s", request_id, error)
            return Unavailable(
                "EXECUTOR_LOST", f"the executor that function '{name}' computed in has ended: {error}", **self._names
            )
        if isinstance(error, BadResult):
            LOG.warning("bad result request=%s: %s", request_id, error)
            return Internal("BAD_RESULT", f"function '{name}': {error}", tensor=error.tensor, **self._names)
        text = describe(error, self._folder)
        LOG.warning("raised request=%s: %s", request_id, text, exc_info=error)
        return Internal("FUNCTION_RAISED", f"function '{name}' raised {text}", **self._names)
