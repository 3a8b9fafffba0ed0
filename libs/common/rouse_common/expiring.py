"""A deadline for one future, for what every request passes: a third of what asyncio.timeout costs, which has to reckon
with everything that a block may wait for."""

from __future__ import annotations

import asyncio
from typing import Any


class expiring:  # noqa: N801 - it reads as the function that it stands for
    """In this block a future that has not ended after `timeout_s` seconds ends with TimeoutError.

    Whoever else looks at the future has to expect that; `done()` tells.
    """

    __slots__ = ("_future", "_timeout_s", "_timer")

    def __init__(self, future: asyncio.Future[Any], timeout_s: float) -> None:
        self._future, self._timeout_s = future, timeout_s

    def __enter__(self) -> None:
        self._timer = self._future.get_loop().call_later(self._timeout_s, _expire, self._future)

    def __exit__(self, *raised: object) -> None:
        self._timer.cancel()


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
        # Seen, whether or not its owner is still there to read it.
        future.exception()
