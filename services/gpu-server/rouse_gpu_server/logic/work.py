"""Background work: tasks of the service's TaskGroup, and blocking calls that can be cancelled cleanly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Starts tasks in the service's TaskGroup; an unexpected exception in one ends the service."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[Any]] = set()
        self.stopped = False

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task that the service waits for; it is cancelled by `stop` at the latest."""
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.stopped:
            task.cancel()
        return task

    def stop(self) -> None:
        """Cancels what is still at work."""
        self.stopped = True
        for task in tuple(self._tasks):
            task.cancel()


async def in_thread(pool: ThreadPoolExecutor, cancelled: threading.Event, work: Callable[[], T]) -> T:
    """Runs blocking work in a thread. Cancelling sets `cancelled` and still waits until the thread has
    stopped, so that whoever cleans up after it is not overtaken by it."""
    running = asyncio.get_running_loop().run_in_executor(pool, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([running])
        if not running.cancelled():
            # Retrieved so that asyncio does not report it as lost; the cancellation says what happened.
            running.exception()
        raise
