"""Limits that all gateways share through Redis: requests a second, and requests in flight.

One loop speaks with Redis: whatever came up while it waited for an answer goes into its next round, in one
pipeline, so that a burst costs a few round trips and not one each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import redis.asyncio

from rouse_cache.allowances import Bucket, Rate, Slots
from rouse_cache.commands import client, finish, talk
from rouse_cache.scripts import HOLD, TAKE
from rouse_common.clock import Clock, SystemClock
from rouse_common.errors import Unavailable

LOG = logging.getLogger(__name__)
K = TypeVar("K", Bucket, Slots)

# A process that dies gives its slots back after this long.
LEASE_S = 5.0
RENEW_S = 1.5
# Requests wait for the answer: rather none than a late one.
TIMEOUT_S = 0.5
# While Redis is away each process counts for itself, and asks again so often.
RETRY_S = 1.0
CONNECTIONS = 2
# Names that are kept; further ones push out those that nobody uses.
MAX_NAMES = 20_000


class Limits:
    """Counts against limits without asking Redis where it can, and without it where it must.

    Args:
        on_away: told True when Redis stops answering, False when it does again.
    """

    def __init__(
        self, connected: redis.asyncio.Redis, clock: Clock, on_away: Callable[[bool], None] = lambda _: None
    ) -> None:
        self._redis: Any = connected
        self._clock = clock
        self._on_away = on_away
        self._holder = secrets.token_hex(8)
        self._buckets: dict[str, Bucket] = {}
        self._slots: dict[str, Slots] = {}
        self._wanted = asyncio.Event()
        self._away_until: float | None = None

    @classmethod
    def connect(cls, url: str, on_away: Callable[[bool], None] = lambda _: None, clock: Clock | None = None) -> Limits:
        """Limits kept in the Redis at redis://:PASSWORD@HOST:PORT/DB. Connects at first use."""
        return cls(client(url, CONNECTIONS, TIMEOUT_S, decode=False), clock or SystemClock(), on_away)

    async def take(self, name: str, rate: Rate) -> float:
        """Takes one token of a bucket: 0.0, or the seconds after which there may be one."""
        now = self._clock.monotonic()
        bucket = _kept(self._buckets, name) or self._buckets.setdefault(name, Bucket(rate))
        bucket.rate = rate
        if bucket.take_ahead(now):
            return 0.0
        if self._alone(now):
            return bucket.take_alone(now)
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        bucket.waiting.append(future)
        self._wanted.set()
        return await future

    async def hold(self, name: str, limit: int) -> bool:
        """Takes one of `limit` slots and says whether there was one; it is given back by `release`."""
        slots = _kept(self._slots, name) or self._slots.setdefault(name, Slots(limit))
        slots.limit = limit
        if self._alone(self._clock.monotonic()):
            return slots.hold_alone()
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        slots.waiting.append(future)
        self._wanted.set()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.result():
                self.release(name)  # it was given in the same moment
            raise

    def release(self, name: str) -> None:
        """Gives one slot back."""
        self._slots[name].held -= 1
        self._wanted.set()

    async def run(self) -> None:
        """Speaks with Redis until cancelled; costs nothing where nothing is limited."""
        renewed = self._clock.monotonic()
        while True:
            # Past it the slots in use are told again, so that their lease does not end.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S if any(kept.held for kept in self._slots.values()) else None):
                    await self._wanted.wait()
            self._wanted.clear()
            now = self._clock.monotonic()
            renews = now - renewed >= RENEW_S
            if renews:
                renewed = now
            await self._round(renews)

    async def close(self) -> None:
        """Gives all slots back, where Redis answers, and closes the connections."""
        for slots in self._slots.values():
            slots.held = 0
        if not self._alone(self._clock.monotonic()):
            await self._round(False)
        await self._redis.aclose()

    async def _round(self, renews: bool) -> None:
        """Asks and tells all that there is, and answers who waits; who comes meanwhile is in the next round."""
        buckets = [(name, kept, _taken(kept)) for name, kept in self._buckets.items() if kept.waiting]
        slots = [
            (name, kept, kept.held, _taken(kept))
            for name, kept in self._slots.items()
            if kept.is_news or (renews and kept.held)
        ]
        if not buckets and not slots:
            return
        answers = await self._ask(buckets, slots)
        now = self._clock.monotonic()
        if answers is None:
            for _, bucket, tokens in buckets:
                bucket.settle_alone(tokens, now)
            for _, kept, _, places in slots:
                kept.settle_alone(places)
            return
        for (_, bucket, tokens), (given, wait_ms) in zip(buckets, answers, strict=False):
            bucket.settle(tokens, int(given), int(wait_ms) / 1000, now)
        for (_, kept, held, places), given in zip(slots, answers[len(buckets) :], strict=True):
            kept.told = held + int(given)
            kept.settle(places, int(given))
            if kept.is_news:
                self._wanted.set()

    async def _ask(
        self,
        buckets: list[tuple[str, Bucket, list[asyncio.Future[float]]]],
        slots: list[tuple[str, Slots, int, list[asyncio.Future[bool]]]],
    ) -> list[Any] | None:
        """Redis' answers in order; None while it is away."""
        if self._alone(self._clock.monotonic()):
            return None
        pipeline = self._redis.pipeline(transaction=False)
        for name, bucket, tokens in buckets:
            rate = bucket.rate
            pipeline.eval(TAKE, 1, f"rouse:rate:{name}", rate.per_second, rate.size, len(tokens) + rate.ahead)
        for name, kept, held, places in slots:
            lease_ms = round(LEASE_S * 1000)
            pipeline.eval(HOLD, 1, f"rouse:slots:{name}", self._holder, kept.limit, held, len(places), lease_ms)
        try:
            answers: list[Any] = await finish(talk(pipeline.execute()))
        except Unavailable as error:
            if self._away_until is None:
                LOG.warning("limits are counted by each gateway alone until redis is back: %s", error)
                self._on_away(True)
            self._away_until = self._clock.monotonic() + RETRY_S
            return None
        if self._away_until is not None:
            LOG.info("redis works again, limits are shared")
            self._away_until = None
            self._on_away(False)
        return answers

    def _alone(self, now: float) -> bool:
        return self._away_until is not None and now < self._away_until


def _taken(kept: Any) -> list[Any]:
    """Who waits; nobody does any more."""
    waiting, kept.waiting = kept.waiting, []
    return list(waiting)


def _kept(of: dict[str, K], name: str) -> K | None:
    """What is kept under a name; None makes sure of room for it."""
    kept = of.get(name)
    if kept is None and len(of) >= MAX_NAMES:
        for other in [other for other, entry in of.items() if not entry.busy]:
            del of[other]
    return kept
