"""`async def predict`: driven in the worker thread, by an event loop that lives as long as the function."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from rouse_runtime.worker import Interrupted


class Awaited:
    """An asynchronous `predict` as an ordinary one: a coroutine's result, an asynchronous generator's items."""

    def __init__(self, predict: Callable[..., Any]) -> None:
        self._predict = predict
        self._loop = asyncio.new_event_loop()

    def __call__(self, *arguments: Any) -> Any:
        made = self._predict(*arguments)
        return self._items(made) if isinstance(made, AsyncGenerator) else self._run(made)

    def _items(self, made: AsyncGenerator[Any, None]) -> Generator[Any, None, None]:
        try:
            while True:
                try:
                    item = self._run(anext(made))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._run(made.aclose())

    def _run(self, awaitable: Any) -> Any:
        try:
            return self._loop.run_until_complete(awaitable)
        except Interrupted:
            # It may have hit the loop itself: what is left there is of no use any more.
            self._loop = asyncio.new_event_loop()
            raise
