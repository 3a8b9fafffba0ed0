"""Background work that cannot get lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from rouse_common.errors import RouseError

LOG = logging.getLogger(__name__)


async def periodically(what: str, interval_s: float, action: Callable[[], Awaitable[object]]) -> None:
    """Runs `action` every `interval_s` until cancelled.

    A RouseError or a lost connection is logged once per run of failures and tried again next time; any
    other exception is a fault of ours and ends the task, and with it the service's TaskGroup.
    """
    failing = False
    while True:
        try:
            await action()
            if failing:
                LOG.info("%s works again", what)
            failing = False
        except (RouseError, OSError, TimeoutError) as error:
            if not failing:
                LOG.warning("%s failed, trying again every %.1f s: %s", what, interval_s, error)
            failing = True
        await asyncio.sleep(interval_s)


@asynccontextmanager
async def unless(lost: Callable[[], Awaitable[RouseError | None]]) -> AsyncIterator[None]:
    """Ends the block with the error that `lost` returns, by cancelling the task that is in it; None ends nothing.

    What `lost` raises ends the block, too. A cancellation by anybody else goes on as one.
    """
    task = asyncio.current_task()
    assert task is not None
    ended: list[BaseException] = []

    async def watch() -> None:
        try:
            error = await lost()
        except Exception as failure:  # noqa: BLE001 - raised below, in the block's own task
            found: BaseException | None = failure
        else:
            found = error
        if found is not None:
            ended.append(found)
            task.cancel()

    watcher = asyncio.create_task(watch(), name="unless")
    try:
        yield
    except asyncio.CancelledError:
        if not ended:
            raise
        task.uncancel()
        raise ended[0] from None
    finally:
        watcher.cancel()
        await asyncio.wait([watcher])
