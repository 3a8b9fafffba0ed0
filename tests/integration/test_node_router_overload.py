"""Ten times what a node can serve: bounded queues and memory, fair shares, and an ending for every request."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rouse_common.errors import ResourceExhausted, RouseError
from rouse_contracts import device
from rouse_node_router.app import NodeRouter
from rouse_node_router.config import NodeRouterConfig
from rouse_testkit.router_node import RouterNode, router_node

CAPACITY = 32
SERVICE_S = 0.01
# What nobody could keep for all requests, and everybody for a full queue.
PAYLOAD = bytes(256 << 10)
REQUESTS = 1500
GROWTH_BYTES = 128 << 20


def make_router(**options: Any) -> NodeRouter:
    return NodeRouter(NodeRouterConfig(**options))


@pytest.fixture
async def mesh(tmp_path: Path, redis_url: str) -> AsyncIterator[RouterNode]:
    async with router_node(make_router, tmp_path, redis_url) as made:
        yield made


async def work(request: device.ExecuteRequest) -> device.ExecuteResponse:
    """A function that takes a while."""
    await asyncio.sleep(SERVICE_S)
    return device.ExecuteResponse(outputs=b"done", device_ms=SERVICE_S * 1000)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Flood:
    """Open-loop requests of one tenant, ten times as fast as they can be served, and another one beside it that
    keeps no more than a few under way."""

    def __init__(self, mesh: RouterNode) -> None:
        self.mesh = mesh
        self.endings: dict[str, Counter[str]] = {"loud": Counter(), "quiet": Counter()}
        # When each refused request was told to come back. (The error itself would keep what it was raised in.)
        self.retries: list[float | None] = []
        self.over = asyncio.Event()
        self.longest_queue = self.most_bytes = 0

    async def one(self, tenant: str, number: int) -> None:
        try:
            await self.mesh.infer(
                f"{tenant}{number}", tenant=tenant, inputs=PAYLOAD, capacity=CAPACITY, timeout_s=5.0, tenant_weight=1
            )
        except ResourceExhausted as error:
            self.retries.append(error.retry_after_s)
            self.endings[tenant][error.reason] += 1
        except RouseError as error:
            self.endings[tenant][error.reason] += 1
        else:
            self.endings[tenant]["COMPLETED"] += 1

    async def loud(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(REQUESTS):
                tasks.create_task(self.one("loud", number))
                await self.pause()
            self.over.set()

    async def pause(self) -> None:
        await asyncio.sleep(SERVICE_S / 10)

    async def quiet(self, worker: int) -> None:
        number = worker * 100_000
        while not self.over.is_set():
            await self.one("quiet", number)
            number += 1

    async def watch(self) -> None:
        while not self.over.is_set():
            row = await self.mesh.row()
            self.longest_queue = max(self.longest_queue, row.queued)
            self.most_bytes = max(self.most_bytes, resident_bytes())
            await self.pause()


@pytest.mark.timeout(300)
async def test_ten_times_the_load(mesh: RouterNode) -> None:
    executor = await mesh.add_executor()
    executor.behaviour = work
    await mesh.infer("first")
    before = resident_bytes()
    flood = Flood(mesh)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(flood.loud())
        tasks.create_task(flood.watch())
        for worker in range(4):
            tasks.create_task(flood.quiet(worker))
    await mesh.all_released()
    loud, quiet = flood.endings["loud"], flood.endings["quiet"]
    # Every request ended, once, with an answer or an error that says what to do.
    known = {"COMPLETED", "QUEUE_FULL", "DISPLACED", "CANNOT_MEET_DEADLINE", "DEADLINE_EXCEEDED"}
    assert loud.total() == REQUESTS
    assert set(loud) | set(quiet) <= known, (loud, quiet)
    assert all(retry_s is not None and retry_s > 0 for retry_s in flood.retries)
    assert max(executor.executed.values()) == 1
    completed = loud["COMPLETED"] + quiet["COMPLETED"]
    row = await mesh.row_with(queued=0, executing=0, completed=completed + 1)
    assert row.refused == len(flood.retries) - loud["DISPLACED"] - quiet["DISPLACED"]
    # It was overload, and the queue and the memory were bounded.
    assert loud["QUEUE_FULL"] + loud["CANNOT_MEET_DEADLINE"] > REQUESTS / 4, loud
    assert flood.longest_queue <= CAPACITY + 1
    assert flood.most_bytes - before < GROWTH_BYTES, f"{(flood.most_bytes - before) >> 20} MiB more"
    # Whoever asks for less than its share gets what it asks for, however loud the other one is.
    assert set(quiet) == {"COMPLETED"}, quiet
    assert quiet["COMPLETED"] > completed / 4, (loud, quiet)
