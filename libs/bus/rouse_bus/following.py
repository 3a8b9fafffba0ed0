"""Serving while NATS is there, for a service whose state is a copy of what NATS keeps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rouse_bus.bus import Bus
from rouse_common.errors import RouseError

LOG = logging.getLogger(__name__)

LOAD_AGAIN_S = 1.0


class Following:
    """Whether a copy is true to NATS.

    Args:
        what: what is read, for people, as "the jobs".
        load: reads the copy anew. Raises RouseError.
        serve: told whenever serving begins or ends.
    """

    def __init__(
        self, bus: Bus, what: str, load: Callable[[], Awaitable[None]], serve: Callable[[bool], Awaitable[None]]
    ) -> None:
        self._bus, self._what, self._load, self._serve = bus, what, load, serve
        self._loaded = False

    @property
    def holds(self) -> bool:
        """Whether the copy is loaded and the connection stands."""
        return self._loaded and self._bus.connected

    async def run(self) -> None:
        """Loads at every connection, again where it fails; serves until the connection ends; until cancelled."""
        while True:
            await self._bus.wait_connected()
            try:
                await self._load()
            except RouseError as error:
                LOG.warning("cannot read %s, trying again: %s", self._what, error)
                await asyncio.sleep(LOAD_AGAIN_S)
                continue
            self._loaded = True
            await self._serve(True)
            await self._bus.wait_disconnected()
            self._loaded = False
            await self._serve(False)
