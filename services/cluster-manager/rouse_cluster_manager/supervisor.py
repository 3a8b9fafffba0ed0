"""Whether this process can do its job: the database is reached, migrated, and nobody else writes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rouse_cluster_manager import metrics
from rouse_common.errors import RouseError, Unavailable
from rouse_store import Database, WriterLock, migrate

LOG = logging.getLogger(__name__)
RETRY_AFTER_S = 1.0


class Gate:
    """What every RPC asks before it begins."""

    def __init__(self) -> None:
        self._closed: Unavailable | None = Unavailable(
            "DATABASE_DOWN", "cluster-manager has just started and waits for its database", retry_after_s=RETRY_AFTER_S
        )

    @property
    def is_open(self) -> bool:
        return self._closed is None

    def check(self) -> None:
        """Raises Unavailable DATABASE_DOWN | STANDBY."""
        if self._closed is not None:
            error = self._closed
            raise Unavailable(error.reason, error.message, retry_after_s=error.retry_after_s)

    def open(self) -> None:
        self._closed = None

    def close(self, error: Unavailable) -> None:
        self._closed = error


class Supervisor:
    """Opens and closes the gate.

    Args:
        begin: called before the gate opens, each time: rebuilds from the database what is kept in memory.
        serving: called with what health has to say.
    """

    def __init__(
        self, database_url: str, database: Database, gate: Gate, *, begin: Callable[[], Awaitable[None]],
        serving: Callable[[bool], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._url, self._database, self._gate = database_url, database, gate
        self._lock = WriterLock(database_url)
        self._begin, self._serving = begin, serving
        self._migrated = False

    async def check(self) -> None:
        """One look; to be called periodically."""
        try:
            await self._prepare()
        except RouseError as error:
            away = error if isinstance(error, Unavailable) else Unavailable("DATABASE_DOWN", error.message)
            if self._gate.is_open:
                LOG.warning("not serving reason=%s", away)
            self._gate.close(away)
            metrics.SERVING.set(0)
            await self._serving(False)
            raise
        if not self._gate.is_open:
            await self._begin()
            self._gate.open()
            metrics.SERVING.set(1)
            await self._serving(True)
            LOG.info("serving, the database is reached")

    async def _prepare(self) -> None:
        if not await self._lock.hold():
            raise Unavailable(
                "STANDBY", "another cluster-manager writes this database; this one waits", retry_after_s=RETRY_AFTER_S
            )
        if not self._migrated:
            await asyncio.to_thread(migrate.upgrade, self._url)
            self._migrated = True
        await self._database.check()

    async def close(self) -> None:
        await self._lock.release()
