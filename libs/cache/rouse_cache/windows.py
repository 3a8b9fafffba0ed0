"""Arrivals and completions of every function, second by second, shared by all services through Redis.

Layout: one hash a second, ``rouse:window:<second>``, expiring after RETENTION_S, with the fields
``a:NAME`` (arrivals), ``c:NAME`` (completions) and ``d:NAME`` (microseconds that devices worked); and the
sorted set ``rouse:last_arrival`` of functions by the time of their latest arrival. So the scaler reads a
window of all functions with one command a second, however many functions there are.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from rouse_cache.commands import client, finish, talk
from rouse_cache.pending import Pending, Taken
from rouse_common.clock import Clock, SystemClock
from rouse_common.errors import Unavailable

LOG = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 0.25
RETENTION_S = 120
# A function that nobody called for so long needs no time of its last call any more.
LAST_ARRIVAL_RETENTION_S = 30 * 86_400
# Pairs of second and function that wait for Redis; what is beyond is counted as lost, not kept.
MAX_PENDING = 50_000
CONNECTIONS = 4
TIMEOUT_S = 2.0

# Between a function's name, which never holds it, and a version's id: requests for other versions than the active
# one are counted under both together as well as under the name.
VERSION_MARK = "@"

LAST_ARRIVAL_KEY = "rouse:last_arrival"
ARRIVALS, COMPLETIONS, DEVICE_US = "a", "c", "d"


def window_key(second: int) -> str:
    return f"rouse:window:{second}"


@dataclass(frozen=True)
class Activity:
    """What a function did within a window.

    Attributes:
        arrivals: requests that came, refused ones included.
        completions: requests that were served.
        device_ms: milliseconds that devices worked for them.
        window_s: length of the window, seconds.
    """

    arrivals: int
    completions: int
    device_ms: float
    window_s: int

    @property
    def arrival_rate(self) -> float:
        """Arrivals a second."""
        return self.arrivals / self.window_s

    @property
    def instance_rate(self) -> float:
        """Requests a second that one instance serves when it is never idle; 0 where none was measured."""
        return 1000.0 * self.completions / self.device_ms if self.device_ms > 0 else 0.0


class Windows:
    """Counts into memory without ever waiting, writes to Redis every FLUSH_INTERVAL_S, reads for the scaler.

    While Redis is away counting goes on, for RETENTION_S and MAX_PENDING entries at most. A write whose
    answer is lost may be counted twice.
    """

    def __init__(self, connected: redis.asyncio.Redis, clock: Clock) -> None:
        self._redis: Any = connected
        self._clock = clock
        self._pending = Pending(MAX_PENDING)
        self._counted = asyncio.Event()
        self._failing = False

    @classmethod
    def connect(cls, url: str, clock: Clock | None = None) -> Windows:
        """A view on the Redis at redis://:PASSWORD@HOST:PORT/DB. Connects at first use.

        Raises ValueError for a URL that cannot be read.
        """
        return cls(client(url, CONNECTIONS, TIMEOUT_S, decode=True), clock or SystemClock())

    def count_arrival(self, function: str) -> None:
        """Counts one request that came, now. Never waits."""
        now = self._clock.now()
        if self._pending.add(int(now), function, arrivals=1):
            self._pending.arrived(function, now)
            self._counted.set()

    def count_completion(self, function: str, device_ms: float) -> None:
        """Counts one request that was served, now, and the milliseconds that a device worked for it."""
        if self._pending.add(int(self._clock.now()), function, completions=1, device_us=round(device_ms * 1000)):
            self._counted.set()

    async def run(self) -> None:
        """Writes what was counted until cancelled; costs nothing while nothing is counted."""
        while True:
            await self._counted.wait()
            self._counted.clear()
            try:
                await self.flush()
                if self._failing:
                    LOG.info("redis works again, activity is written")
                self._failing = False
            except Unavailable as error:
                if not self._failing:
                    LOG.warning("activity stays in memory until redis is back: %s", error)
                self._failing = True
                self._counted.set()
            await asyncio.sleep(FLUSH_INTERVAL_S)

    async def flush(self) -> None:
        """Writes what was counted so far, all or nothing. Raises Unavailable CACHE_UNAVAILABLE and keeps it."""
        now = self._clock.now()
        lost = self._pending.drop_before(int(now) - RETENTION_S) + self._pending.take_refused()
        if lost:
            LOG.warning("activity was lost while redis was away: entries=%d", lost)
        taken = self._pending.take()
        if taken.seconds:
            await finish(self._write(taken, now))

    async def _write(self, taken: Taken, now: float) -> None:
        pipeline = self._redis.pipeline(transaction=True)
        for second, functions in taken.seconds.items():
            key = window_key(second)
            for function, counts in functions.items():
                for field, count in (
                    (ARRIVALS, counts.arrivals),
                    (COMPLETIONS, counts.completions),
                    (DEVICE_US, counts.device_us),
                ):
                    if count:
                        pipeline.hincrby(key, f"{field}:{function}", count)
            pipeline.expire(key, RETENTION_S)
        if taken.last_arrivals:
            pipeline.zadd(LAST_ARRIVAL_KEY, taken.last_arrivals, gt=True)
            pipeline.zremrangebyscore(LAST_ARRIVAL_KEY, "-inf", now - LAST_ARRIVAL_RETENTION_S)
        try:
            await talk(pipeline.execute())
        except Unavailable:
            self._pending.give_back(taken)
            raise

    async def activity(self, window_s: int) -> dict[str, Activity]:
        """Every function that did anything in the last `window_s` whole seconds, the present one left out.

        Raises Unavailable CACHE_UNAVAILABLE; ValueError where the window is longer than what is kept.
        """
        if not 1 <= window_s < RETENTION_S:
            raise ValueError(f"a window of {window_s} s, want 1 to {RETENTION_S - 1}")
        second = int(self._clock.now())
        pipeline = self._redis.pipeline(transaction=False)
        for back in range(1, window_s + 1):
            pipeline.hgetall(window_key(second - back))
        totals: dict[str, dict[str, int]] = {}
        for fields in await finish(talk(pipeline.execute())):
            for field, count in fields.items():
                kind, _, function = field.partition(":")
                of = totals.setdefault(function, {ARRIVALS: 0, COMPLETIONS: 0, DEVICE_US: 0})
                of[kind] += int(count)
        return {
            function: Activity(of[ARRIVALS], of[COMPLETIONS], of[DEVICE_US] / 1000, window_s)
            for function, of in totals.items()
        }

    async def last_arrivals(self) -> dict[str, float]:
        """When each function was last called, seconds since 1970. Raises Unavailable CACHE_UNAVAILABLE."""
        command = self._redis.zrange(LAST_ARRIVAL_KEY, 0, -1, withscores=True)
        return dict(await finish(talk(command)))

    async def forget(self, function: str) -> None:
        """Deletes all that is kept of a function. Raises Unavailable CACHE_UNAVAILABLE."""
        self._pending.forget(function)
        second = int(self._clock.now())
        pipeline = self._redis.pipeline(transaction=False)
        fields = [f"{kind}:{function}" for kind in (ARRIVALS, COMPLETIONS, DEVICE_US)]
        # One second ahead as well: other services' clocks may be.
        for back in range(-1, RETENTION_S + 1):
            pipeline.hdel(window_key(second - back), *fields)
        pipeline.zrem(LAST_ARRIVAL_KEY, function)
        await finish(talk(pipeline.execute()))

    async def close(self) -> None:
        """Closes the connections; what is not flushed is lost."""
        await self._redis.aclose()
