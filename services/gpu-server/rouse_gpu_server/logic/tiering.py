"""Sleeping models leave host memory for disk, and come back ahead of their requests, as the policy says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rouse_common.clock import Clock
from rouse_gpu_server import metrics
from rouse_gpu_server.logic.stager import Stager
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.state.pool import Pool
from rouse_policy import golden, tiering

LOG = logging.getLogger(__name__)


class Tiering:
    """Args:
    capacity_bytes: of the host tier.
    period_s: between two looks, seconds.
    decided: told every decision that moves something as a line for replaying.
    """

    def __init__(
        self,
        pool: Pool,
        stager: Stager,
        background: Background,
        clock: Clock,
        settings: tiering.Settings,
        capacity_bytes: int,
        period_s: float,
        decided: Callable[[str], object] | None = None,
    ) -> None:
        self._pool, self._stager, self._background, self._clock = pool, stager, background, clock
        self._settings, self._capacity_bytes, self._period_s = settings, capacity_bytes, period_s
        self._decided = decided

    async def run(self) -> None:
        """Looks once a period, until cancelled."""
        while True:
            await asyncio.sleep(self._period_s)
            await self.step()

    async def step(self) -> None:
        """One look. What cannot be brought back now is looked at again."""
        if not self._pool.synced:
            return
        now = self._clock.monotonic()
        snapshot, before = self._snapshot(now), tiering.State()
        decision, _ = tiering.decide(snapshot, before, self._settings, now)
        if self._decided is not None and (decision.leave or decision.bring):
            self._decided(golden.line("tiering", snapshot, before, self._settings, now, decision))
        for move in decision.bring:
            LOG.info("brought back ahead of a request artefact=%s reason=%s", move.digest, move.reason)
            # Its errors are logged where they happen, and a request that comes tries again.
            self._background.start(self._stager.bring_back(move.digest), f"bring {move.digest[:12]}")
        for move in decision.leave:
            artefact = self._pool.artefacts.get(move.digest)
            if artefact is not None and await self._stager.leave_host_memory(
                artefact, f"sleeps on disk: {move.reason}"
            ):
                metrics.TIER_DROPPED.labels("host").inc()

    def _snapshot(self, now: float) -> tiering.Snapshot:
        known = {model.artefact.digest for model in self._pool.models.values() if not model.dropping}
        free = self._capacity_bytes - self._stager.host_used_bytes
        return tiering.Snapshot(self._capacity_bytes, free, self._stager.copies(known, now))
