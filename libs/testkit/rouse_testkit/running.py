"""A service's app run inside the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rouse_common.lifecycle import App


class Running:
    """An app at work."""

    def __init__(self, app: App) -> None:
        self._stopping = asyncio.Event()
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(app.run(self._set_ready, self._stopping))

    async def _set_ready(self, address: str) -> None:
        self._ready.set_result(address)

    async def ready(self, timeout_s: float = 10.0) -> str:
        """Its address once it serves. Raises TimeoutError, or what ended it."""
        either: set[asyncio.Future[Any]] = {self._task, self._ready}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task
        if not self._ready.done():
            raise TimeoutError(f"the service does not serve after {timeout_s} s")
        return self._ready.result()

    @property
    def is_ready(self) -> bool:
        return self._ready.done()

    def stop(self) -> asyncio.Task[None]:
        """Asks it to stop; await what this returns to see that it did."""
        self._stopping.set()
        return self._task


@asynccontextmanager
async def running(app: App) -> AsyncIterator[Running]:
    """Runs an app and stops it in the end; what goes wrong in it is raised."""
    service = Running(app)
    try:
        yield service
    finally:
        async with asyncio.timeout(30):
            await service.stop()
