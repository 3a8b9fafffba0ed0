"""How a change reaches those who wait for one."""

from __future__ import annotations

import asyncio


class Wakeup:
    """`kick` after every change that may let something proceed; waiters look again each time."""

    def __init__(self) -> None:
        self._dispatch = asyncio.Event()
        self._changed = asyncio.Event()

    def kick(self) -> None:
        self._dispatch.set()
        self._changed.set()
        self._changed = asyncio.Event()

    async def for_dispatch(self) -> None:
        """The dispatcher's own wait: no kick is ever missed."""
        await self._dispatch.wait()
        self._dispatch.clear()

    async def changed(self) -> None:
        """Waits for the next kick; look at the condition before, with no await between."""
        await self._changed.wait()
