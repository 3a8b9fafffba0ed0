from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rouse_common.errors import Unavailable
from rouse_contracts.device import Executor
from rouse_coordinator.sync import ExecutorSync


class GpuServer:
    def __init__(self) -> None:
        self.lists: list[list[str]] = []
        self.away = False
        self.called = asyncio.Condition()

    async def sync(self, executors: Sequence[Executor]) -> None:
        async with self.called:
            self.lists.append([executor.instance_id for executor in executors])
            self.called.notify_all()
        if self.away:
            raise Unavailable("UNAVAILABLE", "away")

    async def calls(self, count: int) -> None:
        async with asyncio.timeout(10), self.called:
            await self.called.wait_for(lambda: len(self.lists) >= count)


async def test_synced_waits_for_a_list_that_is_new_enough() -> None:
    gpu_server = GpuServer()
    executors: list[Any] = []
    sync = ExecutorSync(lambda: executors, gpu_server.sync, period_s=60)
    running = asyncio.create_task(sync.run())
    await gpu_server.calls(1)
    executors.append(Executor(instance_id="a"))
    async with asyncio.timeout(10):
        await sync.synced()
    assert gpu_server.lists[-1] == ["a"]
    running.cancel()


async def test_the_list_is_sent_again_every_period() -> None:
    gpu_server = GpuServer()
    running = asyncio.create_task(ExecutorSync(list, gpu_server.sync, period_s=0.01).run())
    await gpu_server.calls(5)
    running.cancel()


async def test_a_gpu_server_that_is_away_is_tried_again() -> None:
    gpu_server = GpuServer()
    gpu_server.away = True
    sync = ExecutorSync(list, gpu_server.sync, period_s=0.01)
    running = asyncio.create_task(sync.run())
    waiting = asyncio.create_task(sync.synced())
    await gpu_server.calls(3)
    assert not waiting.done()
    gpu_server.away = False
    async with asyncio.timeout(10):
        await waiting
    running.cancel()
