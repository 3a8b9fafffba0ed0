"""A gpu-server at work: real memory on /dev/shm, and doubles of its neighbours over real gRPC."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rouse_common.link import Links
from rouse_common.rpc import Channels, call
from rouse_contracts import device as contract
from rouse_contracts.links import ACQUIRE, EXECUTE, RELEASE, executor_link
from rouse_gpu_server.app import GpuServer
from rouse_gpu_server.config import GpuServerConfig
from rouse_testkit.gpu import CoordinatorDouble, MadeModel, MappingExecutor, RepositoryDouble
from rouse_testkit.links import ask
from rouse_testkit.running import Running

PAGE = 4096


class Node:
    """A gpu-server with its neighbours. `settings` are changed before `start`."""

    def __init__(self, memory: Path, folder: Path) -> None:
        self.memory, self.folder = memory, folder
        self.repository, self.coordinator = RepositoryDouble(), CoordinatorDouble()
        self.settings: dict[str, Any] = {
            "device": ("host:d0=1MiB",),
            "memory_dir": str(memory),
            "cache_dir": str(folder / "cache"),
            "host_memory": "8MiB",
            "cache_size": "16MiB",
            "detach_limit_s": 1.0,
            "drain_s": 0.5,
            "node_id": "n1",
            # Times of the policy have tests of their own.
            "min_residency_ms": 0,
        }
        # Those that the coordinator names; a test takes one out that is gone.
        self.executors: dict[str, MappingExecutor] = {}
        self._every: list[MappingExecutor] = []
        self._sockets = Path(tempfile.mkdtemp(prefix="rouse-"))
        self._channels, self.links = Channels(16 << 20), Links(16 << 20)
        self.link = f"unix:{self._sockets}/gpu.link"
        self._running: Running | None = None
        self.stub: Any = None

    async def start(self, **settings: Any) -> None:
        self.settings |= settings
        self.settings |= {"model_repository": self.repository.address, "coordinator": self.coordinator.address}
        self.settings["link_listen"] = self.link
        running = Running(GpuServer(GpuServerConfig(**self.settings)))
        self.stub = contract.DeviceServiceStub(self._channels.get(await running.ready()))
        self._running = running

    async def stop(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await running.stop()

    async def close(self) -> None:
        await self.stop()
        for executor in self._every:
            await executor.close()
        await self.links.close()
        await self._channels.close()
        await self.repository.stop()
        await self.coordinator.stop()
        shutil.rmtree(self._sockets)

    # ---- neighbours ----

    async def executor(self, model: MadeModel, name: str = "") -> MappingExecutor:
        """Another serving instance of a model, which gpu-server is not told of yet."""
        executor = MappingExecutor(self._sockets, name or f"i{len(self._every)}", model)
        await executor.start()
        self._every.append(executor)
        self.executors[executor.instance_id] = executor
        self.coordinator.executors[executor.instance_id] = executor
        return executor

    async def deploy(self, model: MadeModel, instances: int = 1) -> MappingExecutor:
        """Stages a model and brings instances of it to serve; the last of them."""
        self.repository.add(model)
        await self.stage(model)
        for _ in range(instances):
            executor = await self.executor(model)
        await self.sync()
        return executor

    async def sync(self) -> None:
        request = contract.SyncExecutorsRequest(executors=[e.message for e in self.executors.values()])
        await call(self.stub.SyncExecutors, request, timeout_s=5)

    # ---- calls ----

    async def stage(self, model: MadeModel, timeout_s: float = 10) -> contract.StageVersionResponse:
        request = contract.StageVersionRequest(version=model.version)
        answer: contract.StageVersionResponse = await call(self.stub.StageVersion, request, timeout_s=timeout_s)
        return answer

    async def acquire(
        self,
        model: MadeModel,
        timeout_s: float = 10,
        owner: str = "router",
        incarnation: str = "1",
        acquire_id: str = "",
        **fields: Any,
    ) -> contract.AcquireResponse:
        request = contract.AcquireRequest(
            version_id=model.version.version_id,
            request_id=f"r-{model.version.spec.name}",
            owner=owner,
            incarnation=incarnation,
            acquire_id=acquire_id,
            **fields,
        )
        return await ask(self.links, self.link, ACQUIRE, request, contract.AcquireResponse, timeout_s)

    async def release(self, lease: contract.AcquireResponse, abandoned: bool = False) -> None:
        await self.give_back(lease_id=lease.lease_id, device_ms=1.0, abandoned=abandoned)

    async def give_back(self, **fields: Any) -> None:
        """Release, with these fields."""
        await ask(self.links, self.link, RELEASE, contract.ReleaseRequest(**fields), contract.ReleaseResponse)

    async def use(self, model: MadeModel, timeout_s: float = 10) -> contract.AcquireResponse:
        """One whole request: what executes reads exactly the model's image."""
        lease = await self.acquire(model, timeout_s)
        answer = await self.execute(lease)
        assert answer.outputs == model.image
        await self.release(lease)
        return lease

    async def execute(self, lease: contract.AcquireResponse, timeout_s: float = 5) -> contract.ExecuteResponse:
        request, address = contract.ExecuteRequest(lease_id=lease.lease_id), executor_link(lease.executor_address)
        return await ask(self.links, address, EXECUTE, request, contract.ExecuteResponse, timeout_s)

    async def drop(self, model: MadeModel, timeout_s: float = 10) -> contract.DropVersionResponse:
        request = contract.DropVersionRequest(
            version_id=model.version.version_id, artefact_digest=model.version.artefact_digest
        )
        answer: contract.DropVersionResponse = await call(self.stub.DropVersion, request, timeout_s=timeout_s)
        return answer

    async def describe(self) -> contract.DescribeDevicesResponse:
        answer: contract.DescribeDevicesResponse = await call(
            self.stub.DescribeDevices, contract.DescribeDevicesRequest(), timeout_s=5
        )
        return answer

    async def states(self) -> dict[str, str]:
        """State and device of every version, as 'DEVICE d0'."""
        rows = (await self.describe()).residency
        return {row.version_id: f"{row.state} {row.device}".strip() for row in rows}

    async def becomes(self, wanted: dict[str, str]) -> None:
        """Waits until the versions are where they should be."""
        await self.until(lambda view: {r.version_id: f"{r.state} {r.device}".strip() for r in view.residency} == wanted)

    async def has_waiting(self, count: int) -> None:
        """Waits until so many requests wait."""
        await self.until(lambda view: view.waiting == count)

    async def until(self, holds: Callable[[contract.DescribeDevicesResponse], bool]) -> None:
        """Waits until what the node describes is as wanted."""
        async with asyncio.timeout(10):
            while not holds(await self.describe()):
                pass

    def segments(self, device: str = "d0") -> list[Path]:
        return sorted((self.memory / device).rglob("*.seg"))

    def mapped_on_disk(self, device: str = "d0") -> int:
        return sum(path.stat().st_blocks * 512 for path in self.segments(device))


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rouse-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def node(memory: Path, tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(memory, tmp_path)
    await node.repository.start()
    await node.coordinator.start()
    yield node
    await node.close()
