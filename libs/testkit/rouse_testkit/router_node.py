"""A node-router with doubles of its neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from rouse_common.lifecycle import App
from rouse_common.link import Links
from rouse_common.rpc import Channels, call
from rouse_contracts import cluster, device, node
from rouse_contracts.links import INFER
from rouse_testkit.doubles_node import DeviceDouble, ExecutorDouble
from rouse_testkit.links import ask
from rouse_testkit.running import Running, running
from rouse_testkit.served import MAX_MESSAGE_BYTES, Served


class UsageDouble(Served, cluster.ClusterServiceServicer):
    """The part of cluster-manager that takes usage records."""

    def __init__(self) -> None:
        super().__init__(cluster.add_ClusterServiceServicer_to_server, cluster.DESCRIPTOR)
        self.records: list[cluster.UsageRecord] = []
        self.changed = asyncio.Condition()

    async def RecordUsage(
        self, request: cluster.RecordUsageRequest, context: grpc.aio.ServicerContext
    ) -> cluster.RecordUsageResponse:
        async with self.changed:
            self.records += request.records
            self.changed.notify_all()
        return cluster.RecordUsageResponse()

    async def until(self, count: int) -> dict[str, cluster.UsageRecord]:
        """Records by request once there are `count` of them."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(lambda: len(self.records) >= count)
        return {record.request_id: record for record in self.records}


class RouterNode:
    """A router with its neighbours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.devices, self.usage = DeviceDouble(), UsageDouble()
        self.channels, self.links = Channels(MAX_MESSAGE_BYTES), Links(MAX_MESSAGE_BYTES)
        self.service: Running
        self.stub: node.NodeServiceStub
        self.address = ""
        self.link = f"unix:{folder}/router.link"

    async def add_executor(self, version_id: str = "v1") -> ExecutorDouble:
        number = sum(map(len, self.devices.executors.values()))
        executor = ExecutorDouble(self.folder / f"x{number}.sock")
        await executor.start()
        self.devices.executors.setdefault(version_id, []).append(executor)
        return executor

    async def infer(
        self, request_id: str = "r", *, version_id: str = "v1", timeout_s: float = 10.0, capacity: int = 0,
        inputs: bytes = b"in", **fields: Any,
    ) -> node.InferResponse:  # fmt: skip
        """Has the router serve a request; `fields` are further ones of node.InferRequest."""
        request = node.InferRequest(
            function="f",
            version_id=version_id,
            request_id=request_id,
            inputs=inputs,
            output_names=["y"],
            queue_capacity=capacity,
            **fields,
        )
        return await ask(self.links, self.link, INFER, request, node.InferResponse, timeout_s)

    async def row(self) -> node.QueueSummary:
        described = await call(self.stub.DescribeQueues, node.DescribeQueuesRequest(), timeout_s=5)
        summary: node.QueueSummary
        (summary,) = described.queues
        return summary

    async def row_with(self, **counts: int) -> node.QueueSummary:
        """The row once it shows these counts. Raises TimeoutError."""
        async with asyncio.timeout(10):
            while True:
                row = await self.row()
                if all(getattr(row, name) == count for name, count in counts.items()):
                    return row

    async def all_released(self) -> None:
        devices = self.devices
        await devices.until(lambda: not (devices.held or devices.tape_leases or devices.waiting))


class Held:
    """A behaviour that starts, and ends when the test says so."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()

    async def __call__(self, request: device.ExecuteRequest) -> device.ExecuteResponse:
        self.started.put_nowait(request.request_id)
        await self.go.wait()
        return device.ExecuteResponse(outputs=b"late", device_ms=3.0)


@asynccontextmanager
async def router_node(
    make: Callable[..., App], folder: Path, redis_url: str, **options: Any
) -> AsyncIterator[RouterNode]:
    """Runs the router that `make` makes of its settings, between its neighbours."""
    made = RouterNode(folder)
    gpu_server, cluster_manager = await made.devices.start(), await made.usage.start()
    app = make(
        node_id="node0", link_listen=made.link, gpu_server=gpu_server, gpu_server_link=made.devices.link,
        cluster_manager=cluster_manager, redis=redis_url, **options,
    )  # fmt: skip
    async with running(app) as made.service:
        made.address = await made.service.ready()
        made.stub = node.NodeServiceStub(made.channels.get(made.address))
        try:
            yield made
        finally:
            await made.links.close()
            await made.channels.close()
    for executors in made.devices.executors.values():
        for executor in executors:
            await executor.kill()
    await made.devices.stop()
    await made.usage.stop()
