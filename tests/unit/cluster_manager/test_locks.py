"""Locks by name exclude each other by name only, and leave nothing behind."""

from __future__ import annotations

import asyncio

from rouse_cluster_manager.locks import KeyedLocks


async def test_one_at_a_time_for_each_name_and_nothing_left() -> None:
    locks, inside, most = KeyedLocks(), {"a": 0, "b": 0}, {"a": 0, "b": 0}

    async def visit(key: str) -> None:
        async with locks.hold(key):
            inside[key] += 1
            most[key] = max(most[key], inside[key])
            await asyncio.sleep(0)
            inside[key] -= 1

    await asyncio.gather(*(visit(key) for key in "ab" * 20))
    assert most == {"a": 1, "b": 1}
    assert len(locks) == 0


async def test_names_do_not_wait_for_each_other_and_a_cancelled_wait_leaves_nothing() -> None:
    locks = KeyedLocks()
    async with locks.hold("a"):
        async with asyncio.timeout(5), locks.hold("b"):
            pass

        async def wait() -> None:
            async with locks.hold("a"):
                raise AssertionError("the lock is held")

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
    assert len(locks) == 0
