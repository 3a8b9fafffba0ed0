"""Runs requests one at a time, under the attachment that gpu-server made.

A request runs in the one worker thread that also loaded the function. It is begun there (`answer`: one response, from
the mesh) or on the event loop (`execute`: any number of them, or from elsewhere); all else here is the loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rouse_common.errors import FailedPrecondition, Internal, RouseError
from rouse_contracts.functions import FunctionVersion, RequestOptions
from rouse_contracts.wire import Buffer
from rouse_runtime.handlers import Handler
from rouse_runtime.job import Job, Result
from rouse_runtime.redirected import Redirected
from rouse_runtime.request import Request
from rouse_runtime.running import Runner
from rouse_runtime.watchdog import Watchdog
from rouse_runtime.weights import SizeMismatch, WeightsRange
from rouse_runtime.worker import Worker

if TYPE_CHECKING:
    from rouse_runtime.redirected.recording import Recorder

LOG = logging.getLogger(__name__)
HOST = "host"
# How long code that could notice by itself that its caller is gone has for it, before it is interrupted.
NOTICE_S = 0.5
PRESS_AGAIN_S = 0.1


@dataclass(frozen=True)
class Attachment:
    """What gpu-server mapped into the range.

    Attributes:
        id: leases of this attachment begin with it.
        path, device: the segment's file and the device's name.
        threads: intra-operation threads that the device allows.
        session: socket of the executor's session, where the function is redirected; there is no segment then.
    """

    id: str
    path: str
    device: str
    threads: int
    session: str = ""


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
        worker: Worker,
        watchdog: Watchdog,
        hang_grace_s: float,
        finish_output: Callable[[], None],
    ) -> None:
        self._version, self._instance = version, instance_id
        self._names: dict[str, Any] = {"function": version.spec.name, "instance": instance_id}
        self._handler, self._weights, self._worker = handler, weights, worker
        self._runner = Runner(version, folder, self._names, handler, worker, watchdog, hang_grace_s, finish_output)
        self._loop = asyncio.get_running_loop()
        self._mapping = asyncio.Lock()
        # Both threads, under the guard.
        self._guard = threading.Lock()
        self._attachment: Attachment | None = None
        self._detaching = False
        self._running: Job | None = None
        self._idle = asyncio.Event()

    @property
    def decoupled(self) -> bool:
        """Whether a request has any number of responses."""
        return self._version.spec.decoupled

    @property
    def recorder(self) -> Recorder | None:
        """What has requests recorded as tapes; None where the function is not redirected."""
        return self._handler.recorder if isinstance(self._handler, Redirected) else None

    @property
    def busy(self) -> bool:
        """Whether a request runs."""
        return self._running is not None

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
                if isinstance(self._handler, Redirected):
                    await _finished(self._worker.run(self._handler.connect, attachment.session))
                elif self._weights.image_bytes:
                    await _to_the_end(self._weights.attach, attachment.path, size_bytes)
                elif size_bytes:
                    raise SizeMismatch(f"the device's copy has {size_bytes} bytes, the function has no weights")
            except SizeMismatch as error:
                raise FailedPrecondition("SIZE_MISMATCH", f"attach refused: {error}", **self._names) from error
            except (OSError, RuntimeError) as error:
                what = "session cannot be taken" if attachment.session else "segment cannot be mapped"
                raise Internal("ATTACH_FAILED", f"the {what}: {error}", **self._names) from error
            with self._guard:
                self._attachment = attachment
            LOG.debug("attached device=%s attachment=%s", attachment.device, attachment.id)

    async def detach(self, timeout_s: float) -> None:
        """Accepts no more requests, waits for the one that runs, and unmaps. Detaching twice succeeds.

        Raises Internal EXECUTOR_BUSY where the request outlasts `timeout_s`; the attachment then stays.
        """
        async with self._mapping:
            with self._guard:
                self._detaching = True
            try:
                await self._until_idle(timeout_s)
                with self._guard:
                    self._attachment = None
                if isinstance(self._handler, Redirected):
                    await _finished(self._worker.run(self._handler.disconnect))
                else:
                    await _to_the_end(self._weights.detach)
            finally:
                self._detaching = False

    async def _until_idle(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while self._running is not None:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            raise Internal(
                "EXECUTOR_BUSY",
                f"instance {self._instance} still executes after {timeout_s:.1f} s; it stays attached",
                **self._names,
            ) from None

    async def execute(
        self,
        lease_id: str,
        request_id: str,
        inputs: Buffer,
        wanted: Sequence[str],
        left_s: float,
        options: RequestOptions | None = None,
        rows: int = 0,
    ) -> AsyncGenerator[Result, None]:
        """Runs the function once; gives its one response, or what a decoupled function yields and a last one.

        Close it (`aclosing`) or cancel it where no response is wanted any more: a generator is then closed at its
        next `yield`, and code that neither yields nor looks at `request.cancelled` is interrupted.

        Args:
            left_s: seconds until the caller's deadline.
            rows: of a batch; 0 where the function takes none.

        Raises FailedPrecondition STALE_LEASE | EXECUTOR_BUSY; InvalidArgument BAD_TENSOR | UNKNOWN_OUTPUT;
        Internal FUNCTION_RAISED | BAD_RESULT.
        """
        job = self._begin(lease_id, Request(request_id, options, left_s), inputs, wanted, rows)
        context = contextvars.copy_context()
        self._worker.submit(lambda: context.run(self._run, job))
        try:
            while (result := await job.take()) is not None:
                yield result
        finally:
            if not job.ended:
                LOG.warning("caller went away, the result is dropped request=%s", request_id)
                self._stop(job)

    def _run(self, job: Job) -> None:
        """In the worker thread."""
        result, error = self._runner.run(job)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is about to end
            self._loop.call_soon_threadsafe(self._ended, job, result, error)

    def _ended(self, job: Job, result: Result | None, error: RouseError | None) -> None:
        # First of all: who has the last response may send the next request.
        self._finish()
        job.end(result, error)

    def answer(
        self,
        lease_id: str,
        request: Request,
        inputs: Buffer,
        wanted: Sequence[str],
        rows: int,
        given_up: Callable[[], bool],
    ) -> Result:
        """Runs a function with one response, in the worker thread, which calls this.

        Args:
            given_up: whether nobody waits any more, should `give_up` have come before the request began.

        Raises what `execute` raises.
        """
        job = self._begin(lease_id, request, inputs, wanted, rows)
        if given_up():
            job.cancel()
        result, error = self._runner.run(job)
        job.ended = True
        self._finish()
        if error is not None:
            raise error
        assert result is not None
        return result

    def give_up(self) -> None:
        """Nobody waits for the request that runs, if one does."""
        job = self._running
        if job is not None and not job.request.cancelled:
            LOG.warning("caller went away, the result is dropped request=%s", job.request.id)
            self._stop(job)

    def busy_error(self) -> RouseError:
        """For a request that comes while another one runs."""
        return FailedPrecondition(
            "EXECUTOR_BUSY", f"instance {self._instance} executes another request", **self._names
        )  # fmt: skip

    def _begin(self, lease_id: str, request: Request, inputs: Buffer, wanted: Sequence[str], rows: int) -> Job:
        with self._guard:
            device, threads = self._admit(lease_id)
            job = Job(request, inputs, list(wanted), rows, device, threads, self._loop)
            self._running = job
        if self.decoupled:
            job.stream()
        return job

    def _finish(self) -> None:
        with self._guard:
            self._running = None
            if not self._detaching:
                return
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is about to end
            self._loop.call_soon_threadsafe(self._idle.set)

    def _stop(self, job: Job) -> None:
        """Ends what nobody waits for. Code that may notice by itself, at a `yield` or by looking, has a moment."""
        job.cancel()
        patient = self.decoupled or self._handler.takes_request
        self._loop.call_later(NOTICE_S if patient else 0.0, self._press, job)

    def _press(self, job: Job) -> None:
        if not job.ended:
            self._worker.interrupt(job)
            # Again: it may have hit code that swallows everything, as a destructor does.
            self._loop.call_later(PRESS_AGAIN_S, self._press, job)

    def _admit(self, lease_id: str) -> tuple[str, int]:
        if self._running is not None:
            raise self.busy_error()
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


async def _to_the_end(work: Callable[..., None], *arguments: object) -> None:
    """Runs blocking work in a thread; a cancellation is passed on only when it is done.

    A mapping that changes behind the back of the state would let a request run on memory that is not there.
    """
    await _finished(asyncio.to_thread(work, *arguments))


async def _finished(work: Coroutine[Any, Any, None]) -> None:
    """As `_to_the_end`, of work that is awaited."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
