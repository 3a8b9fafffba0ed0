"""What one process knows of the limits: tokens in hand, slots in use, and who waits for them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

# Tokens are fetched ahead for so many seconds of a tenant's rate, and for this share of its burst at most, so that
# not every request asks Redis; what is not used within AHEAD_KEPT_S is forgotten.
AHEAD_S = 0.05
AHEAD_SHARE = 0.1
AHEAD_KEPT_S = 1.0
LEAST_WAIT_S = 0.001


@dataclass(frozen=True)
class Rate:
    """A rate a second and how many may come at once; `burst` 0 is a second's worth, one at least."""

    per_second: float
    burst: float = 0

    @property
    def size(self) -> float:
        return max(1.0, self.burst or self.per_second)

    @property
    def ahead(self) -> int:
        return int(min(self.per_second * AHEAD_S, self.size * AHEAD_SHARE))


@dataclass
class Bucket:
    """A tenant's tokens here.

    Attributes:
        ahead: tokens fetched and not used, until `ahead_until`.
        own, own_at: the bucket that counts while Redis is away; None before.
        waiting: who waits for a token; what they get is 0.0, or the seconds after which to come again.
    """

    rate: Rate
    ahead: int = 0
    ahead_until: float = 0.0
    own: float | None = None
    own_at: float = 0.0
    waiting: list[asyncio.Future[float]] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return bool(self.waiting)

    def take_ahead(self, now: float) -> bool:
        """One of the tokens in hand."""
        if self.ahead <= 0 or now > self.ahead_until:
            return False
        self.ahead -= 1
        return True

    def take_alone(self, now: float) -> float:
        """A token of the bucket that counts while Redis is away: 0.0, or seconds after which there is one."""
        size = self.rate.size
        before = size if self.own is None else self.own
        self.own = min(size, before + max(0.0, now - self.own_at) * self.rate.per_second)
        self.own_at = now
        if self.own >= 1:
            self.own -= 1
            return 0.0
        return max(LEAST_WAIT_S, (1 - self.own) / self.rate.per_second)

    def settle(self, waiters: list[asyncio.Future[float]], given: int, wait_s: float, now: float) -> None:
        """Hands `given` tokens out to those who waited, and keeps what is left."""
        for future in waiters:
            if future.done():
                continue
            future.set_result(0.0 if given > 0 else max(LEAST_WAIT_S, wait_s))
            given = max(0, given - 1)
        self.ahead, self.ahead_until, self.own = given, now + AHEAD_KEPT_S, None

    def settle_alone(self, waiters: list[asyncio.Future[float]], now: float) -> None:
        """Answers those who waited without Redis."""
        for future in waiters:
            if not future.done():
                future.set_result(self.take_alone(now))


@dataclass
class Slots:
    """A name's slots here.

    Attributes:
        held: in use by this process.
        told: what Redis was told last.
        waiting: who waits for one; what they get is whether they have it.
    """

    limit: int
    held: int = 0
    told: int = 0
    waiting: list[asyncio.Future[bool]] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or self.held > 0 or self.told > 0

    @property
    def is_news(self) -> bool:
        """Whether there is something to ask or to tell."""
        return bool(self.waiting) or self.held != self.told

    def hold_alone(self) -> bool:
        """A slot, as far as this process alone knows."""
        if self.held >= self.limit:
            return False
        self.held += 1
        return True

    def settle(self, waiters: list[asyncio.Future[bool]], given: int) -> None:
        """Hands `given` slots out to those who waited; the others are refused."""
        for future in waiters:
            if future.done():
                continue
            future.set_result(given > 0)
            if given > 0:
                given -= 1
                self.held += 1

    def settle_alone(self, waiters: list[asyncio.Future[bool]]) -> None:
        """Answers those who waited without Redis."""
        for future in waiters:
            if not future.done():
                future.set_result(self.hold_alone())
