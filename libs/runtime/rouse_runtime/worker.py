"""The one thread that user code runs in, and how it is made to stop.

It waits for work that is handed over and for descriptors that it watches, so that it can take requests from their
sockets by itself (rouse_common.link.blocking).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

_interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Interrupted(BaseException):
    """Raised in user code, between two of its operations, when nobody waits for its result any more."""


class Worker:
    """Does one piece of work at a time, in the order that they were handed over."""

    def __init__(self, name: str) -> None:
        self._work: deque[Callable[[], None]] = deque()
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self.watch(self._woken, self._handed_over)
        # What follows belongs to `call` and `interrupt`.
        self._guard = threading.Lock()
        self._inside: object = None
        self._sent = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        """Has `work` done, which must not raise."""
        self._work.append(work)
        os.eventfd_write(self._woken, 1)

    def watch(self, descriptor: int, ready: Callable[[], None]) -> None:
        """Has `ready` called in the thread whenever there is something to read; it must not raise."""
        self._watched[descriptor] = ready
        self._epoll.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        """To be called before a descriptor is closed."""
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

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
            for descriptor, _ in self._epoll.poll():
                ready = self._watched.get(descriptor)
                if ready is not None:  # it may have been closed by what came before
                    ready()

    def _handed_over(self) -> None:
        os.eventfd_read(self._woken)
        while self._work:
            self._work.popleft()()

    # ---- In the worker thread ------------------------------------------------------------------

    def call(self, key: object, function: Callable[..., T], *arguments: Any) -> T:
        """Calls user code; the only place where `interrupt` of the same key can hit.

        Raises Interrupted where it was, and whatever the function raises.
        """
        # CPython raises what another thread sent at calls, at entries of functions and at jumps backwards, so
        # never between the start of a handler and its first store. Before that store it may hit the `finally`
        # below, and is caught outside of it; after it, nothing is sent any more, and what was is taken back.
        try:
            try:
                self._inside = key
                return function(*arguments)
            finally:
                self._inside = None
                self._take_back()
        except Interrupted:
            self._inside = None
            self._take_back()
            raise

    def _take_back(self) -> None:
        with self._guard:
            if self._sent:
                self._sent = False
                # NULL: what is pending is forgotten.
                _interrupt(ctypes.c_ulong(threading.get_ident()), None)

    # ---- In the loop's thread ------------------------------------------------------------------

    def interrupt(self, key: object) -> None:
        """Raises Interrupted in the user code that runs under a key; does nothing where none does."""
        with self._guard:
            if self._inside is key and self._thread.ident is not None:
                self._sent = True
                _interrupt(ctypes.c_ulong(self._thread.ident), ctypes.py_object(Interrupted))
