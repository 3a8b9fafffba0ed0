"""Rates and slots that several gateways share, on a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from rouse_cache import Limits, Rate, limits
from rouse_embedded.stores import Redis

DEADLINE_S = 20.0


@pytest.fixture
async def gateways(redis_url: str) -> AsyncIterator[list[Limits]]:
    async with running(redis_url) as made:
        yield made


class running:  # noqa: N801 - reads as a function
    """Two gateways' limits, spoken for by their loops."""

    def __init__(self, url: str, away: Callable[[bool], None] = lambda _: None) -> None:
        self.url, self.away = url, away

    async def __aenter__(self) -> list[Limits]:
        self.made = [Limits.connect(self.url, self.away) for _ in range(2)]
        self.loops = [asyncio.create_task(made.run()) for made in self.made]
        return self.made

    async def __aexit__(self, *_: object) -> None:
        for loop in self.loops:
            loop.cancel()
        await asyncio.gather(*self.loops, return_exceptions=True)
        for made in self.made:
            await made.close()


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await holds():
            continue


async def test_a_burst_is_shared_to_the_last_token(gateways: list[Limits]) -> None:
    # One token takes so long that none is added while the test runs.
    rate = Rate(0.001, burst=7)
    waits = await asyncio.gather(*(gateways[number % 2].take("acme", rate) for number in range(20)))
    assert waits.count(0.0) == 7
    assert all(500 < wait <= 1000 for wait in waits if wait)
    assert await gateways[0].take("other", rate) == 0.0


async def test_tokens_are_fetched_ahead_where_there_are_many(gateways: list[Limits], redis_url: str) -> None:
    rate = Rate(1000, burst=1000)
    connection: Any = redis.asyncio.Redis.from_url(redis_url)

    async def asked() -> int:
        calls: int = (await connection.info("commandstats")).get("cmdstat_eval", {}).get("calls", 0)
        return calls

    before = await asked()
    for _ in range(200):
        assert await gateways[0].take("acme", rate) == 0.0
    assert await asked() - before < 100
    await connection.aclose()


async def test_slots_are_shared_and_given_back(gateways: list[Limits]) -> None:
    one, other = gateways
    held = await asyncio.gather(*((one, other)[number % 2].hold("acme", 5) for number in range(12)))
    assert held.count(True) == 5
    holders = [(one, other)[number % 2] for number, has in enumerate(held) if has]
    assert not await one.hold("acme", 5)
    holders[0].release("acme")
    await until(lambda: other.hold("acme", 5))
    assert not await other.hold("acme", 5)
    # A lower limit holds for those that come, a higher one at once.
    assert not await one.hold("acme", 2)
    assert await one.hold("acme", 6)


async def test_slots_of_a_dead_gateway_come_back(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEASE_S", 0.2)
    monkeypatch.setattr(limits, "RENEW_S", 0.05)
    async with running(redis_url) as (one, other):
        dead = Limits.connect(redis_url)
        loop = asyncio.create_task(dead.run())
        assert await dead.hold("acme", 2)
        assert await one.hold("acme", 2)
        assert not await other.hold("acme", 2)
        loop.cancel()  # and it is never heard of again
        await until(lambda: other.hold("acme", 2))
        # The living one renewed its lease meanwhile.
        assert not await other.hold("acme", 2)
        assert not await one.hold("acme", 2)
        await asyncio.gather(loop, return_exceptions=True)
        await dead._redis.aclose()


async def test_whoever_gives_up_waiting_holds_nothing(gateways: list[Limits]) -> None:
    one, other = gateways
    for _ in range(50):
        waiting = asyncio.create_task(one.hold("acme", 1))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await until(lambda: other.hold("acme", 1))


async def test_without_redis_each_counts_alone_and_then_together_again(tmp_path: Path) -> None:
    server = Redis(tmp_path / "redis")
    await asyncio.to_thread(server.start)
    told: list[bool] = []
    async with running(server.url, told.append) as (one, other):
        rate = Rate(0.001, burst=3)
        assert await one.take("acme", rate) == 0.0
        assert await one.hold("acme", 2)
        await asyncio.to_thread(server.stop)
        waits = [await one.take("acme", rate) for _ in range(5)] + [await other.take("acme", rate) for _ in range(5)]
        assert waits.count(0.0) == 6
        assert [await one.hold("acme", 2) for _ in range(2)] == [True, False]
        assert told == [True, True]
        await asyncio.to_thread(server.start)

        async def shared_again() -> bool:
            # Slots in use are told again, though this Redis never heard of them.
            if not await other.hold("acme", 2):
                return True
            other.release("acme")
            return False

        await until(shared_again)
        assert told.count(False) >= 1
    await asyncio.to_thread(server.stop)
