"""How much memory redirected functions hold beside their weights: told by the executors, where it is allocated.

An executor is asked a while after something was done there that may have taken memory, and once for all its versions.
Nothing here is on a request's way.
"""

from __future__ import annotations

import asyncio
import logging

from rouse_common.errors import RouseError
from rouse_contracts import specs
from rouse_gpu_server.logic.sessions import Sessions
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.state.pool import Pool
from rouse_gpu_server.state.records import Resident
from rouse_gpu_server.state.wakeup import Wakeup

LOG = logging.getLogger(__name__)
# What an attachment copies is in the ring when it returns, and on the device a moment later.
PAUSE_S = 0.5


class Measuring:
    """Args:
    pause_s: between what may have taken memory and the question, and so between two questions to one executor.
    """

    def __init__(
        self, pool: Pool, sessions: Sessions, background: Background, wakeup: Wakeup, pause_s: float = PAUSE_S
    ) -> None:
        self._pool, self._sessions, self._background, self._wakeup = pool, sessions, background, wakeup
        self._pause_s = pause_s
        # Executors that will be asked: by device, and by version where it has one of its own.
        self._asking: set[tuple[str, str]] = set()

    def used(self, resident: Resident) -> None:
        """Something was done with a resident that may have taken memory."""
        if not self._sessions.enabled or not specs.is_redirected(resident.model.version.spec):
            return
        key = self._sessions.executor_of(resident)
        if key not in self._asking:
            self._asking.add(key)
            self._background.start(self._ask(key), f"working memory on {key[0]}")

    async def _ask(self, key: tuple[str, str]) -> None:
        try:
            await asyncio.sleep(self._pause_s)
        finally:
            # What is done from here on asks again.
            self._asking.discard(key)
        try:
            working = await self._sessions.working(key)
        except RouseError as error:
            LOG.warning("working memory not known device=%s reason=%s", key[0], error)
            return
        for version_id, size_bytes in working.items():
            if self._pool.measured(version_id, size_bytes):
                model = self._pool.models[version_id]
                LOG.info(
                    "working memory function=%s version=%s device=%s measured_bytes=%d declared_bytes=%d",
                    model.function, version_id, key[0], model.measured_bytes, model.declared_bytes,
                )  # fmt: skip
                self._wakeup.kick()
