"""The pool of connections, transactions that are retried, and the one process that may write."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Literal, TypeVar

from sqlalchemy import Connection, create_engine, exc, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from rouse_common.errors import Unavailable
from rouse_store.errors import Conflict, translate
from rouse_store.unit import Unit
from rouse_store.url import connect_args, normalised

LOG = logging.getLogger(__name__)
T = TypeVar("T")
POOL_SIZE = 8
POOL_TIMEOUT_S = 5.0
ATTEMPTS = 5
BACKOFF_S = 0.02
WRITER_LOCK = 0x726F757365_02
APPLICATION = "rouse-cluster-manager"


class Database:
    """Runs transactions off the event loop.

    Args:
        database_url: SQLAlchemy URL of a PostgreSQL database. Raises ValueError for another one.
        on_commit: called on the event loop after each commit, before the caller of `run` goes on, and even
            if that caller was cancelled meanwhile: what a transaction changed is never forgotten.
    """

    def __init__(self, database_url: str, on_commit: Callable[[Unit], None] | None = None) -> None:
        self._on_commit = on_commit
        self._engine = create_engine(
            normalised(database_url),
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_S,
            pool_pre_ping=True,
            connect_args=connect_args(APPLICATION),
        )

    async def run(
        self, work: Callable[[Unit], T], *, isolation: Literal["READ COMMITTED", "REPEATABLE READ"] = "READ COMMITTED"
    ) -> T:
        """Runs `work` in one transaction in a thread and returns what it returned.

        `work` may run several times, each time on a transaction of its own: a deadlock or a failure to
        serialise is tried again, ATTEMPTS times in all. An exception of `work` rolls back and goes on.
        Raises Unavailable DATABASE_DOWN.
        """
        loop = asyncio.get_running_loop()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await asyncio.to_thread(self._once, work, isolation, loop)
            except Conflict as conflict:
                LOG.debug("transaction met another one sqlstate=%s attempt=%d", conflict, attempt)
                await asyncio.sleep(BACKOFF_S * attempt * random.uniform(0.5, 1.5))  # noqa: S311 - only spreads
        raise Unavailable(
            "DATABASE_DOWN", f"a transaction met others {ATTEMPTS} times and was given up; retry soon", retry_after_s=1
        )

    def _once(self, work: Callable[[Unit], T], isolation: str, loop: asyncio.AbstractEventLoop) -> T:
        with translate(), Session(self._engine, expire_on_commit=False) as session:
            if isolation != "READ COMMITTED":
                session.connection(execution_options={"isolation_level": isolation})
            unit = Unit(session)
            result = work(unit)
            session.commit()
        if self._on_commit is not None and unit.has_news:
            loop.call_soon_threadsafe(self._on_commit, unit)
        return result

    async def check(self) -> None:
        """Asks the database for a sign of life. Raises Unavailable DATABASE_DOWN."""
        await self.run(lambda unit: unit.session.execute(text("SELECT 1")))

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.dispose)


class WriterLock:
    """Makes sure that one process at a time writes a database, as long as its connection lives.

    Liveness of nodes is judged by one process's memory; two would contradict each other.
    """

    def __init__(self, database_url: str) -> None:
        self._engine = create_engine(
            normalised(database_url), poolclass=NullPool, connect_args=connect_args(f"{APPLICATION}-writer")
        )
        self._connection: Connection | None = None

    async def hold(self) -> bool:
        """Takes the lock or makes sure that it is still held. False: another process has it.

        Raises Unavailable DATABASE_DOWN; the lock is lost then.
        """
        return await asyncio.to_thread(self._hold)

    async def release(self) -> None:
        await asyncio.to_thread(self._close)

    def _hold(self) -> bool:
        try:
            with translate():
                if self._connection is not None:
                    self._connection.execute(text("SELECT 1"))
                    return True
                connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                self._connection = connection
                taken = connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": WRITER_LOCK})
                if not taken.scalar_one():
                    self._close()
        except Unavailable:
            self._close()
            raise
        return self._connection is not None

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close()
        except exc.DBAPIError as error:
            LOG.debug("closing a lost connection: %s", error)
