"""Periodic work goes on over failures of others and ends at a fault of ours."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rouse_common.errors import Unavailable
from rouse_common.tasks import periodically


async def test_it_goes_on_over_failures_and_says_so_once_a_run_of_them(caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[Exception | None] = [None, Unavailable("X", "away"), OSError("gone"), None, TimeoutError(), None]
    done = asyncio.Event()
    calls = 0

    async def action() -> None:
        nonlocal calls
        calls += 1
        if calls > len(outcomes):
            done.set()
            return
        outcome = outcomes[calls - 1]
        if outcome is not None:
            raise outcome

    with caplog.at_level(logging.INFO, "rouse_common.tasks"):
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(periodically("asking", 0.0, action))
            await done.wait()
            task.cancel()
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "INFO", "WARNING", "INFO"]
    assert "asking failed, trying again every 0.0 s: away" in said[0][1]
    assert said[1][1] == "asking works again"


async def test_a_fault_of_ours_ends_it() -> None:
    async def action() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await periodically("dividing", 0.0, action)


async def test_it_can_be_cancelled_while_it_waits_and_while_it_works() -> None:
    working, forever = asyncio.Event(), asyncio.Event()

    async def action() -> None:
        working.set()
        await forever.wait()

    async def nothing() -> None:
        working.set()

    for work in (action, nothing):
        working.clear()
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(periodically("waiting", 3600.0, work))
            await working.wait()
            task.cancel()
        assert task.cancelled()
