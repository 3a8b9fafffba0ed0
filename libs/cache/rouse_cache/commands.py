"""How commands are sent to Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from rouse_common.errors import Unavailable

T = TypeVar("T")
RETRY_AFTER_S = 1.0


def client(url: str, connections: int, timeout_s: float, *, decode: bool) -> redis.asyncio.Redis:
    """A client of the Redis at redis://:PASSWORD@HOST:PORT/DB, which connects at first use. Raises ValueError."""
    pool: Any = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        # For a connection to be free.
        timeout=timeout_s,
        decode_responses=decode,
        max_connections=connections,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        # A pooled connection that a restarted Redis cut off fails once and is made anew.
        retry=Retry(NoBackoff(), 1),
    )
    # The client closes the pool as its own.
    return redis.asyncio.Redis.from_pool(pool)


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Does the work to its end, which the client's timeout bounds, even where the caller is cancelled meanwhile.

    redis-py can lose a cancellation, and then its caller would go on as if nobody had asked it to stop.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def talk(command: Any) -> Any:
    """A command's answer. Raises Unavailable CACHE_UNAVAILABLE."""
    try:
        return await command
    except (RedisError, OSError, TimeoutError) as error:
        kind = type(error).__name__
        raise Unavailable(
            "CACHE_UNAVAILABLE", f"redis does not answer ({kind}: {error}); is it running?", retry_after_s=RETRY_AFTER_S
        ) from None
