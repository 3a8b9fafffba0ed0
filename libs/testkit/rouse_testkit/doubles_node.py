"""In-process doubles of a node's gpu-server and executors: real servers with the contracts' behaviour.

The device double grants each executor to one request at a time and checks, as it goes, what a router must
keep: a lease is given back once it is not used any more, and nothing is executed without one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc

from rouse_common.errors import FailedPrecondition, RouseError, Unavailable
from rouse_common.link import Incoming
from rouse_common.rpc import RpcServer
from rouse_contracts import device as contract
from rouse_contracts.links import ACQUIRE, EXECUTE, RELEASE, executor_link
from rouse_testkit.links import Linked, answered
from rouse_testkit.served import MAX_MESSAGE_BYTES

Behaviour = Callable[
    [contract.ExecuteRequest], Awaitable[contract.ExecuteResponse] | AsyncIterator[contract.ExecuteResponse]
]


async def echo(request: contract.ExecuteRequest) -> contract.ExecuteResponse:
    """Answers with the inputs; says that it worked for one millisecond."""
    return contract.ExecuteResponse(outputs=request.inputs, device_ms=1.0)


class ExecutorDouble:
    """An executor's link. `behaviour` says what Execute does, also as a generator; replace it at any time."""

    def __init__(self, socket: Path) -> None:
        self.address = f"unix:{socket}"
        self.instance_id = socket.stem
        self.behaviour: Behaviour = echo
        self.leases: set[str] = set()
        self.executed: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.active = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._link = Linked(executor_link(self.address))
        self._link.add(EXECUTE, contract.ExecuteRequest, self._execute)

    async def start(self) -> None:
        await self._link.start()

    async def kill(self) -> None:
        """Goes away at once, with whatever it executes."""
        await self._link.kill()

    async def _execute(self, request: contract.ExecuteRequest, call: Incoming) -> contract.ExecuteResponse | None:
        if request.lease_id not in self.leases:
            raise FailedPrecondition("STALE_LEASE", f"lease {request.lease_id} is not of the present attachment")
        self.active += 1
        self.idle.clear()
        assert self.active == 1, "two requests execute at once on one executor"
        try:
            self.executed[request.request_id] += 1
            return await answered(self.behaviour(request), call)
        except asyncio.CancelledError:
            self.cancelled[request.request_id] += 1
            raise
        finally:
            self.active -= 1
            self.idle.set()


class DeviceDouble(contract.DeviceServiceServicer):
    """A gpu-server whose devices are its executors: each is granted to one request at a time, in order."""

    def __init__(self) -> None:
        self.executors: dict[str, list[ExecutorDouble]] = {}
        self.held: dict[str, ExecutorDouble] = {}
        self.releases: list[contract.ReleaseRequest] = []
        self.released_all: list[contract.ReleaseAllRequest] = []
        self.acquired: list[str] = []
        self.most_waiting = 0
        # Raised by the next calls of Acquire, one each.
        self.refusals: deque[RouseError] = deque()
        self.swapped_in = False
        # Of the next leases; where nothing but tapes is wanted, leases have these alone.
        self.tape_leases: set[str] = set()
        self.tapes: contract.TapeAccess | None = None
        # So many of the next leases are of an attachment that is over.
        self.stale = 0
        # Told of each executor that is given back as abandoned.
        self.on_abandoned: Callable[[ExecutorDouble], object] = lambda executor: None
        self.changed = asyncio.Condition()
        self.address = "127.0.0.1:0"
        self._granted_to: dict[str, str] = {}
        self._waiting: dict[str, deque[str]] = {}
        self._numbers = itertools.count(1)
        self._server: RpcServer | None = None
        self._link = Linked()
        self._link.add(ACQUIRE, contract.AcquireRequest, self._acquire)
        self._link.add(RELEASE, contract.ReleaseRequest, self._release)

    async def start(self) -> str:
        """Serves; at the same address when it is started again, and then knows no lease any more."""
        self.held.clear()
        self._granted_to.clear()
        self._server = RpcServer(self.address, max_message_bytes=MAX_MESSAGE_BYTES)
        self._server.add(contract.add_DeviceServiceServicer_to_server, self, contract.DESCRIPTOR)
        await self._server.start()
        await self._server.set_serving(True)
        self.address = self._server.address
        await self._link.start()
        return self.address

    @property
    def link(self) -> str:
        """Address of the link, once started."""
        return self._link.address

    async def stop(self) -> None:
        await self._link.kill()
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(0)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Waits until something that happens here makes the condition true. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(condition)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def _acquire(self, request: contract.AcquireRequest, call: Incoming) -> contract.AcquireResponse:
        if request.tape_key:
            return await self._taped(request)
        if self.refusals:
            raise self.refusals.popleft()
        version_id, instance_id = request.version_id, request.instance_id
        queue = self._waiting.setdefault(version_id + instance_id, deque())
        queue.append(request.acquire_id)
        try:
            async with self.changed:
                self.most_waiting = max(self.most_waiting, len(queue))
                self.changed.notify_all()
                await self.changed.wait_for(
                    lambda: queue[0] == request.acquire_id and self._next(version_id, instance_id)
                )
                executor = self._next(version_id, instance_id)
                assert executor is not None
                lease_id = f"attached/{next(self._numbers)}"
                self.held[lease_id] = executor
                if self.stale:
                    self.stale -= 1
                else:
                    executor.leases.add(lease_id)
                self._granted_to[request.acquire_id] = lease_id
                self.acquired.append(request.request_id)
        finally:
            queue.remove(request.acquire_id)
            async with self.changed:
                self.changed.notify_all()
        return contract.AcquireResponse(
            lease_id=lease_id,
            executor_address=executor.address,
            instance_id=executor.instance_id,
            device="cpu0",
            swapped_in=self.swapped_in,
            swap_ms=2.0 if self.swapped_in else 0.0,
            tapes=self.tapes,
        )

    async def _taped(self, request: contract.AcquireRequest) -> contract.AcquireResponse:
        """A lease without an executor: the device's tapes answer."""
        if self.tapes is None or request.tape_key not in self.tapes.keys:
            raise Unavailable("NO_TAPE", "no tape answers such a request")
        lease_id = f"tapes/{next(self._numbers)}"
        async with self.changed:
            self.tape_leases.add(lease_id)
            self._granted_to[request.acquire_id] = lease_id
            self.acquired.append(request.request_id)
            self.changed.notify_all()
        return contract.AcquireResponse(lease_id=lease_id, device="cpu0", tapes=self.tapes)

    async def _release(self, request: contract.ReleaseRequest, call: Incoming) -> contract.ReleaseResponse:
        lease_id = request.lease_id or self._granted_to.get(request.acquire_id, "")
        if request.abandoned and lease_id in self.held:
            executor = self.held[lease_id]
            await executor.idle.wait()
            self.on_abandoned(executor)
        async with self.changed:
            self.releases.append(request)
            self.held.pop(lease_id, None)
            self.tape_leases.discard(lease_id)
            self.changed.notify_all()
        return contract.ReleaseResponse()

    async def ReleaseAll(
        self, request: contract.ReleaseAllRequest, context: grpc.aio.ServicerContext
    ) -> contract.ReleaseAllResponse:
        async with self.changed:
            self.released_all.append(request)
            self.changed.notify_all()
        return contract.ReleaseAllResponse()

    def _next(self, version_id: str, instance_id: str) -> ExecutorDouble | None:
        """A free executor of the version, that one if one is named. Raises Unavailable NO_EXECUTOR where it has none
        at all, INSTANCE_GONE where that one is not there."""
        executors = self.executors.get(version_id, [])
        if instance_id:
            executors = [executor for executor in executors if executor.instance_id == instance_id]
            if not executors:
                raise Unavailable("INSTANCE_GONE", f"instance {instance_id} does not serve on this node any more")
        if not executors:
            raise Unavailable("NO_EXECUTOR", f"no executor serves version {version_id} on this node")
        busy = set(map(id, self.held.values()))
        return next((executor for executor in executors if id(executor) not in busy), None)
