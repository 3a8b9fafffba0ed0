"""One request on its way through an instance; where the loop's thread waits for what the worker's thread makes, how."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from rouse_common.errors import RouseError
from rouse_contracts.wire import Buffer
from rouse_runtime.request import Request
from rouse_runtime.worker import Interrupted

# Responses of a decoupled function that may wait for their reader; past these, the generator waits.
AHEAD = 2


class Result(NamedTuple):
    """One response, and how long it took in milliseconds.

    Of a decoupled function the last one has no outputs, and the times of all.

    Attributes:
        outputs: a serialised TensorBatch.
        device_ms: in the function's own code.
        input_ms, output_ms: reading the inputs and writing the outputs.
    """

    outputs: bytes
    device_ms: float = 0.0
    input_ms: float = 0.0
    output_ms: float = 0.0


@dataclass
class Job:
    """One request.

    Attributes:
        wanted: names of outputs; all where there are none.
        rows: of a batch, 0 where the function takes none.
        device, threads: where it runs.
        seconds: what was spent in the function, in reading and in writing so far.
    """

    request: Request
    inputs: Buffer
    wanted: list[str]
    rows: int
    device: str
    threads: int
    loop: asyncio.AbstractEventLoop
    device_s: float = 0.0
    input_s: float = 0.0
    output_s: float = 0.0
    ended: bool = False
    _error: BaseException | None = None
    _results: deque[Result] = field(default_factory=lambda: deque(maxlen=AHEAD + 1))
    _room: threading.Semaphore | None = None
    _waiter: asyncio.Future[None] | None = None

    def last(self, outputs: bytes) -> Result:
        """The response that carries the times."""
        return Result(outputs, self.device_s * 1000, self.input_s * 1000, self.output_s * 1000)

    # ---- In the worker thread ------------------------------------------------------------------

    def check(self) -> None:
        """Raises Interrupted where nobody waits any more."""
        if self.request.cancelled:
            raise Interrupted

    def put(self, result: Result) -> None:
        """Sends a response that is not the last; waits while the reader is behind, up to the deadline.

        Raises Interrupted where nobody reads any more.
        """
        assert self._room is not None, "only the job of a decoupled function has responses before its last"
        taken = self._room.acquire(timeout=self.request.time_left_s)
        if not taken:
            raise Interrupted
        self.check()
        self.loop.call_soon_threadsafe(self._arrive, result)

    # ---- In the loop's thread ------------------------------------------------------------------

    def stream(self) -> Job:
        """Lets the job have responses before its last."""
        self._room = threading.Semaphore(AHEAD)
        return self

    def cancel(self) -> None:
        """Nobody waits any more: user code can see it, and a generator that waits for its reader goes on."""
        self.request.cancel()
        if self._room is not None:
            self._room.release()

    def end(self, result: Result | None, error: RouseError | None) -> None:
        """Nothing of the job runs any more."""
        self.ended, self._error = True, error
        if result is not None:
            self._results.append(result)
        self._wake()

    async def take(self) -> Result | None:
        """The next response, None after the last one. Raises what the job ended with."""
        while not self._results and not self.ended:
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._results:
            if self._room is not None:
                self._room.release()
            return self._results.popleft()
        if self._error is not None:
            raise self._error
        return None

    def _arrive(self, result: Result) -> None:
        self._results.append(result)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
