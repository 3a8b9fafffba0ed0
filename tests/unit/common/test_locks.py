"""Locks by key."""

from __future__ import annotations

import asyncio

from rouse_common.locks import KeyedLocks


async def test_one_key_is_held_by_one_at_a_time_and_others_are_not_held_up() -> None:
    locks, events = KeyedLocks(), list[str]()
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with locks.holding("a"):
            inside.set()
            await go_on.wait()
            events.append("first")

    async def second() -> None:
        async with locks.holding("a"):
            events.append("second")

    tasks = [asyncio.create_task(first()), asyncio.create_task(second())]
    await inside.wait()
    async with locks.holding("b"):
        events.append("other key")
    go_on.set()
    await asyncio.gather(*tasks)
    assert events == ["other key", "first", "second"]
    assert len(locks) == 0


async def test_who_gives_up_waiting_leaves_nothing() -> None:
    locks, inside, go_on = KeyedLocks(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with locks.holding("a"):
            inside.set()
            await go_on.wait()

    holder = asyncio.create_task(hold())
    await inside.wait()
    waiting = asyncio.create_task(hold())
    assert not (await asyncio.wait({waiting}, timeout=0.01))[0]
    waiting.cancel()
    await asyncio.wait({waiting})
    go_on.set()
    await holder
    assert len(locks) == 0
