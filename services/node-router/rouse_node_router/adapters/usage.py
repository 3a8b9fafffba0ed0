"""Usage records on their way to cluster-manager: batched, bounded, tried again until they are taken."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from rouse_common.errors import InvalidArgument, RouseError
from rouse_common.rpc import Channels, call
from rouse_contracts import cluster
from rouse_node_router import metrics

LOG = logging.getLogger(__name__)

# RecordUsageRequest takes 1,000.
BATCH = 1000
INTERVAL_S = 0.5
TIMEOUT_S = 5.0


class Usage:
    """Collects records and sends them every INTERVAL_S; a record that is sent twice is counted once.

    Args:
        channels: where the channel to cluster-manager is kept.
        address: of cluster-manager.
        limit: records that are kept while it is away; past it the oldest are lost, counted and logged.
    """

    def __init__(self, channels: Channels, address: str, limit: int) -> None:
        self._stub = cluster.ClusterServiceStub(channels.get(address))
        self._records: deque[cluster.UsageRecord] = deque()
        self._limit = limit
        self._added = asyncio.Event()
        self._dropping = False

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: cluster.UsageRecord) -> None:
        """Keeps a record for the next batch. Never waits."""
        while len(self._records) >= self._limit:
            self._records.popleft()
            metrics.USAGE_DROPPED.inc()
            if not self._dropping:
                LOG.warning("usage records are lost, cluster-manager is away for too long: kept=%d", self._limit)
            self._dropping = True
        self._records.append(record)
        self._added.set()

    async def run(self) -> None:
        """Sends until cancelled; costs nothing while there is nothing to send."""
        failing = False
        while True:
            await self._added.wait()
            self._added.clear()
            try:
                await self.flush()
                if failing:
                    LOG.info("cluster-manager takes usage records again")
                failing = False
            except RouseError as error:
                if not failing:
                    LOG.warning("usage records wait for cluster-manager: kept=%d error=%s", len(self), error)
                failing = True
                self._added.set()
            await asyncio.sleep(INTERVAL_S)

    async def flush(self) -> None:
        """Sends everything that is kept now. Raises RouseError and keeps what was not taken."""
        # What arrives meanwhile has its own turn: else a busy node would send record after record, never in batches.
        left = len(self._records)
        while left > 0 and self._records:
            batch = [self._records.popleft() for _ in range(min(BATCH, left, len(self._records)))]
            left -= len(batch)
            taken = False
            try:
                await call(self._stub.RecordUsage, cluster.RecordUsageRequest(records=batch), timeout_s=TIMEOUT_S)
                taken = True
            except InvalidArgument as error:
                # Sent again it would be refused again, and keep all later ones from being counted.
                LOG.error("cluster-manager refused %d usage records: %s", len(batch), error)
                metrics.USAGE_DROPPED.inc(len(batch))
                taken = True
            finally:
                if not taken:
                    self._records.extendleft(reversed(batch))
            self._dropping = False
