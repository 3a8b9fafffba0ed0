"""Answers to requests that may come again, shared by all gateways through Redis."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from enum import Enum
from typing import Any

import redis.asyncio

from rouse_cache.commands import client, finish, talk
from rouse_cache.scripts import FINISH, RESERVE
from rouse_common.clock import Clock, SystemClock

KEPT_S = 600.0
MAX_ANSWER_BYTES = 1 << 20
# What a tenant's records may have together: of a request that is known, about this much without its answer.
RECORD_BYTES = 256
TENANT_BYTES = 64 << 20
MINUTE_S = 60
TIMEOUT_S = 2.0
CONNECTIONS = 8


class Known(Enum):
    """What is known of a request when it comes."""

    NEW = "NEW"
    RUNNING = "RUNNING"
    DONE = "DONE"
    # Its answer was too large to be kept.
    LARGE = "LARGE"
    # It may have run, and nobody will tell.
    LOST = "LOST"
    # Its key stood for a request with other inputs.
    OTHER = "OTHER"
    # The tenant has too many answers kept.
    FULL = "FULL"


@dataclass(frozen=True)
class Name:
    """Which request: whose, of which function, by which key."""

    tenant: str
    function: str
    key: str

    @property
    def record(self) -> str:
        digest = hashlib.sha256("\x00".join((self.tenant, self.function, self.key)).encode(errors="replace"))
        return f"rouse:answer:{digest.hexdigest()}"


@dataclass(frozen=True)
class Reservation:
    """Args:
    owner: who runs it, where it is NEW.
    answer: as it was kept, where it is DONE.
    left_s: how long the one under way may take, where it is RUNNING.
    """

    known: Known
    owner: str = ""
    answer: bytes = b""
    left_s: float = 0.0


class Answers:
    """Every method raises Unavailable CACHE_UNAVAILABLE."""

    def __init__(self, connected: redis.asyncio.Redis, clock: Clock) -> None:
        self._redis: Any = connected
        self._clock = clock

    @classmethod
    def connect(cls, url: str, clock: Clock | None = None) -> Answers:
        """Answers kept in the Redis at redis://:PASSWORD@HOST:PORT/DB. Connects at first use."""
        return cls(client(url, CONNECTIONS, TIMEOUT_S, decode=False), clock or SystemClock())

    async def reserve(self, name: Name, digest: str, lease_s: float) -> Reservation:
        """What is known of a request; a NEW one is the caller's to run within `lease_s`, and to `finish`.

        Args:
            digest: of what is asked; another one under the same name is OTHER.
        """
        owner = secrets.token_hex(8)
        keys = self._keys(name)
        command = self._redis.eval(
            RESERVE, len(keys), *keys, digest, owner, round(lease_s * 1000), round(KEPT_S * 1000), RECORD_BYTES,
            TENANT_BYTES,
        )  # fmt: skip
        state, *rest = await finish(talk(command))
        known = Known(state.decode())
        if known is Known.DONE:
            return Reservation(known, answer=rest[0])
        return Reservation(known, owner, left_s=int(rest[0]) / 1000 if known is Known.RUNNING else 0.0)

    async def keep(self, name: Name, owner: str, answer: bytes) -> None:
        """Keeps the answer for KEPT_S, or that it was too large."""
        large = len(answer) > MAX_ANSWER_BYTES
        await self._finish(name, owner, Known.LARGE if large else Known.DONE, b"" if large else answer)

    async def lose(self, name: Name, owner: str) -> None:
        """It may have run, and there is no answer."""
        await self._finish(name, owner, Known.LOST, b"")

    async def forget(self, name: Name, owner: str) -> None:
        """It did not run: the next one is NEW."""
        await self._finish(name, owner, None, b"")

    async def _finish(self, name: Name, owner: str, known: Known | None, answer: bytes) -> None:
        keys = self._keys(name)
        state = known.value if known is not None else ""
        command = self._redis.eval(FINISH, len(keys), *keys, owner, state, answer, round(KEPT_S * 1000), TENANT_BYTES)
        await finish(talk(command))

    async def close(self) -> None:
        await self._redis.aclose()

    def _keys(self, name: Name) -> list[str]:
        """The record, and the counters of its tenant's bytes: of the present minute and those still kept."""
        minute = int(self._clock.now()) // MINUTE_S
        owner = hashlib.sha256(name.tenant.encode(errors="replace")).hexdigest()[:32]
        minutes = range(minute, minute - int(KEPT_S) // MINUTE_S - 1, -1)
        return [name.record, *(f"rouse:answers:{owner}:{number}" for number in minutes)]
