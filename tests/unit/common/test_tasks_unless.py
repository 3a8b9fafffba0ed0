"""Ending a block from outside: with the error that somebody found, and with nobody else's cancellation."""

from __future__ import annotations

import asyncio

import pytest

from rouse_common.errors import RouseError, Unavailable
from rouse_common.tasks import unless


async def never() -> RouseError | None:
    await asyncio.Event().wait()
    return None


async def nothing() -> RouseError | None:
    return None


async def test_a_block_that_nobody_ends_goes_on() -> None:
    for lost in (never, nothing):
        async with unless(lost):
            await asyncio.wait({asyncio.ensure_future(nothing())})
    # So short that the watcher never began.
    async with unless(never):
        pass


async def test_it_ends_with_the_error_that_was_found() -> None:
    found = asyncio.Event()

    async def lost() -> RouseError | None:
        await found.wait()
        return Unavailable("GONE", "it is gone")

    cleaned = []

    async def block() -> None:
        async with unless(lost):
            try:
                found.set()
                await asyncio.Event().wait()
            finally:
                cleaned.append(True)

    task = asyncio.create_task(block())
    with pytest.raises(Unavailable, match="it is gone"):
        await task
    assert cleaned
    assert task.cancelling() == 0


async def test_a_cancellation_stays_one() -> None:
    entered = asyncio.Event()

    async def block() -> None:
        async with unless(never):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failure_of_the_watcher_is_the_block_s() -> None:
    async def broken() -> RouseError | None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with unless(broken):
            await asyncio.Event().wait()
