"""The one thread that user code runs in, and how it is made to stop.

Handing work over costs the release of a lock and one wake-up of the loop: 24 µs there and back, where an executor
of concurrent.futures takes 34.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

_interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Interrupted(BaseException):
    """Raised in user code, between two of its operations, when nobody waits for its result any more."""


class Worker:
    """Does one piece of work at a time; whoever hands work over knows that the last one has ended."""

    def __init__(self, name: str) -> None:
        self._waiting = threading.Lock()
        self._waiting.acquire()
        self._work: Callable[[], None] | None = None
        # What follows belongs to `call` and `interrupt`.
        self._guard = threading.Lock()
        self._inside = False
        self._sent = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        """Has `work` done, which must not raise. To be called when nothing else is being done."""
        if self._work is not None:
            raise RuntimeError("the worker has work already")
        self._work = work
        self._waiting.release()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises. A cancellation does not stop it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(set_value: Callable[[Any], None], value: object) -> None:
            if not future.done():
                set_value(value)

        def do() -> None:
            try:
                result = work(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                loop.call_soon_threadsafe(settle, future.set_exception, error)
            else:
                loop.call_soon_threadsafe(settle, future.set_result, result)

        self.submit(do)
        return await future

    def _serve(self) -> None:
        while True:
            self._waiting.acquire()
            work, self._work = self._work, None
            if work is not None:
                work()

    # ---- In the worker thread ------------------------------------------------------------------

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls user code; the only place where `interrupt` can hit.

        Raises Interrupted where it was, and whatever the function raises.
        """
        # CPython raises what another thread sent at calls, at entries of functions and at jumps backwards, so
        # never between the start of a handler and its first store. Before that store it may hit the `finally`
        # below, and is caught outside of it; after it, nothing is sent any more, and what was is taken back.
        try:
            try:
                self._inside = True
                return function(*arguments)
            finally:
                self._inside = False
                self._take_back()
        except Interrupted:
            self._inside = False
            self._take_back()
            raise

    def _take_back(self) -> None:
        with self._guard:
            if self._sent:
                self._sent = False
                # NULL: what is pending is forgotten.
                _interrupt(ctypes.c_ulong(threading.get_ident()), None)

    # ---- In the loop's thread ------------------------------------------------------------------

    def interrupt(self) -> None:
        """Raises Interrupted in the user code that runs; does nothing where none does."""
        with self._guard:
            if self._inside and self._thread.ident is not None:
                self._sent = True
                _interrupt(ctypes.c_ulong(self._thread.ident), ctypes.py_object(Interrupted))
