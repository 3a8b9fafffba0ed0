"""Runs requests one at a time, under the attachment that gpu-server made.

Everything here runs on the event loop, except for the request itself, which runs in the one worker thread that
also loaded the function.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from rouse_common import telemetry
from rouse_common.errors import FailedPrecondition, Internal, InvalidArgument, RouseError
from rouse_contracts.functions import FunctionVersion
from rouse_contracts.tensors import TensorError
from rouse_runtime.failures import BadResult, UnknownOutput, describe
from rouse_runtime.handlers import Handler
from rouse_runtime.watchdog import Watchdog
from rouse_runtime.weights import SizeMismatch, WeightsRange

LOG = logging.getLogger(__name__)
HOST = "host"


@dataclass(frozen=True)
class Attachment:
    """What gpu-server mapped into the range.

    Attributes:
        id: leases of this attachment begin with it.
        path, device: the segment's file and the device's name.
        threads: intra-operation threads that the device allows.
    """

    id: str
    path: str
    device: str
    threads: int


@dataclass(frozen=True)
class Result:
    """A request's outputs, serialised, and how long the function worked."""

    outputs: bytes
    device_ms: float


class Executor:
    """One loaded function.

    Args:
        worker: the single thread that loaded the function.
        hang_grace_s: how long a request may run past its deadline before the process is ended.
        finish_output: called in the worker after each request, to send unfinished printed lines.
    """

    def __init__(
        self,
        version: FunctionVersion,
        folder: str,
        instance_id: str,
        handler: Handler,
        weights: WeightsRange,
        worker: ThreadPoolExecutor,
        watchdog: Watchdog,
        hang_grace_s: float,
        finish_output: Callable[[], None],
    ) -> None:
        self._version, self._folder, self._instance = version, folder, instance_id
        self._handler, self._weights, self._worker = handler, weights, worker
        self._watchdog, self._hang_grace_s, self._finish_output = watchdog, hang_grace_s, finish_output
        self._attachment: Attachment | None = None
        self._mapping = asyncio.Lock()
        self._detaching = False
        self._running: asyncio.Future[Result] | None = None
        self._threads = 0

    @property
    def _names(self) -> dict[str, Any]:
        return {"function": self._version.spec.name, "instance": self._instance}

    async def attach(self, attachment: Attachment, size_bytes: int) -> None:
        """Maps a device's copy of the weights. The same attachment again succeeds.

        Raises FailedPrecondition SIZE_MISMATCH | ALREADY_ATTACHED, Internal ATTACH_FAILED.
        """
        async with self._mapping:
            present = self._attachment
            if present == attachment:
                return
            if present is not None:
                raise FailedPrecondition(
                    "ALREADY_ATTACHED", f"instance {self._instance} is attached to {present.device}; detach it first",
                    device=present.device, **self._names,
                )  # fmt: skip
            try:
                if self._weights.image_bytes:
                    await _to_the_end(self._weights.attach, attachment.path, size_bytes)
                elif size_bytes:
                    raise SizeMismatch(f"the device's copy has {size_bytes} bytes, the function has no weights")
            except SizeMismatch as error:
                raise FailedPrecondition("SIZE_MISMATCH", f"attach refused: {error}", **self._names) from error
            except OSError as error:
                raise Internal("ATTACH_FAILED", f"the segment cannot be mapped: {error}", **self._names) from error
            self._attachment = attachment
            LOG.debug("attached device=%s attachment=%s", attachment.device, attachment.id)

    async def detach(self, timeout_s: float) -> None:
        """Accepts no more requests, waits for the one that runs, and unmaps. Detaching twice succeeds.

        Raises Internal EXECUTOR_BUSY where the request outlasts `timeout_s`; the attachment then stays.
        """
        async with self._mapping:
            self._detaching = True
            try:
                await self._idle(timeout_s)
                self._attachment = None
                await _to_the_end(self._weights.detach)
            finally:
                self._detaching = False

    async def _idle(self, timeout_s: float) -> None:
        if self._running is None:
            return
        done, _ = await asyncio.wait([self._running], timeout=timeout_s)
        if not done:
            raise Internal(
                "EXECUTOR_BUSY",
                f"instance {self._instance} still executes after {timeout_s:.1f} s; it stays attached",
                **self._names,
            )

    async def execute(
        self, lease_id: str, request_id: str, inputs: bytes, wanted: Sequence[str], left_s: float
    ) -> Result:
        """Runs the function once. Cancelling it drops the result; the function itself runs to its end.

        Args:
            left_s: seconds until the caller's deadline.

        Raises FailedPrecondition STALE_LEASE | EXECUTOR_BUSY; InvalidArgument BAD_TENSOR | UNKNOWN_OUTPUT;
        Internal FUNCTION_RAISED | BAD_RESULT.
        """
        device, threads = self._admit(lease_id)

        def work() -> Result:
            with self._watchdog.watch(f"request {request_id} ran past its deadline", left_s + self._hang_grace_s):
                return self._work(request_id, inputs, wanted, device, threads)

        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(self._worker, context.run, work)
        self._running = future
        future.add_done_callback(self._ended)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            LOG.warning("caller went away, the result is dropped request=%s", request_id)
            raise

    def _admit(self, lease_id: str) -> tuple[str, int]:
        if self._running is not None:
            raise FailedPrecondition(
                "EXECUTOR_BUSY", f"instance {self._instance} executes another request", **self._names
            )
        threads = self._version.spec.resources.threads
        if not self._weights.image_bytes:
            return HOST, threads
        attachment = self._attachment
        if attachment is None or self._detaching or not lease_id.startswith(f"{attachment.id}/"):
            raise FailedPrecondition(
                "STALE_LEASE", f"the lease is not one of what instance {self._instance} is attached to; acquire again",
                **self._names,
            )  # fmt: skip
        return attachment.device, attachment.threads or threads

    def _ended(self, future: asyncio.Future[Result]) -> None:
        self._running = None
        if not future.cancelled():
            future.exception()  # a request whose caller went away: its failure is in the log already

    # ---- In the worker thread ------------------------------------------------------------------

    def _work(self, request_id: str, data: bytes, wanted: Sequence[str], device: str, threads: int) -> Result:
        from rouse_runtime.arrays import read_inputs, write_outputs

        signature = self._version.spec.signature
        try:
            inputs = read_inputs(data, signature)
            with telemetry.span("execute", device=device, request_id=request_id, **self._names) as span:
                with self._inference(threads):
                    started = time.perf_counter()
                    result = self._handler.predict(inputs)
                    device_ms = (time.perf_counter() - started) * 1000
                span.set_attribute("device_ms", round(device_ms, 3))
            return Result(write_outputs(result, signature, wanted, self._handler.casts), device_ms)
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            raise self._typed(error, request_id) from None
        finally:
            self._finish_output()

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

    def _typed(self, error: BaseException, request_id: str) -> RouseError:
        name = self._version.spec.name
        if isinstance(error, TensorError):
            return InvalidArgument("BAD_TENSOR", f"function '{name}': {error}", **self._names)
        if isinstance(error, UnknownOutput):
            return InvalidArgument("UNKNOWN_OUTPUT", f"function '{name}': {error}", **self._names)
        if isinstance(error, BadResult):
            LOG.warning("bad result request=%s: %s", request_id, error)
            return Internal("BAD_RESULT", f"function '{name}': {error}", tensor=error.tensor, **self._names)
        text = describe(error, self._folder)
        LOG.warning("raised request=%s: %s", request_id, text, exc_info=error)
        return Internal("FUNCTION_RAISED", f"function '{name}' raised {text}", **self._names)


async def _to_the_end(work: Callable[..., None], *arguments: object) -> None:
    """Runs blocking work in a thread; a cancellation is passed on only when it is done.

    A mapping that changes behind the back of the state would let a request run on memory that is not there.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
