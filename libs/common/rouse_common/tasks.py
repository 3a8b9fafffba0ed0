"""Background work that cannot get lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

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
