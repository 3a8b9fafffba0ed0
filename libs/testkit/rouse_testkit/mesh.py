"""A whole mesh for tests: real stores and services, killed and started again as a test likes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import psutil

import rouse
from rouse_contracts import cluster, coordination
from rouse_embedded import EmbeddedMesh, MeshInfo, MeshOptions
from rouse_embedded.folders import tagged
from rouse_testkit.footprint import Footprint, measure

T = TypeVar("T")
POLL_S = 0.02
READY_TIMEOUT_S = 90.0
CALL_TIMEOUT_S = 120.0


class Mesh:
    """Runs an EmbeddedMesh in a thread of its own, so that tests with and without an event loop can use it.

    Args:
        folder: keeps the mesh's data over `stop` and `start`.
        nodes, devices: as of MeshOptions.
        settings: settings of services, as {"scaler": {"period_s": "0.2"}}.
        overrides: further fields of MeshOptions.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        devices: Sequence[str] = ("host:gpu0=256MiB",),
        settings: Mapping[str, Mapping[str, str]] | None = None,
        **overrides: Any,
    ) -> None:
        fields = {"host_memory": "512MiB", "listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0"} | overrides
        self._options = MeshOptions(
            data_dir=folder / "mesh", nodes=nodes, devices=tuple(devices), settings=settings or {}, **fields
        )
        self._clients: list[rouse.Client] = []
        self._thread: threading.Thread | None = None
        self._mesh: EmbeddedMesh | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None
        self._outcome: concurrent.futures.Future[None] = concurrent.futures.Future()

    def start(self) -> Mesh:
        """Starts everything and waits until it is ready. Raises MeshError."""
        entered: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._outcome = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(entered, self._outcome), name="mesh", daemon=True)
        self._thread.start()
        entered.result(CALL_TIMEOUT_S)
        try:
            self.wait_ready()
        except BaseException:
            self._end()
            raise
        return self

    def stop(self) -> None:
        """Stops everything in order and checks that nothing is left but the data."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._thread is None:
            return
        mesh = self._running
        folders = mesh.info.folders
        self._end()
        assert not mesh.leaked, f"processes outlived the mesh: {mesh.leaked}"
        assert not tagged(folders.key), "processes outlived the mesh"
        for folder in (folders.memory, folders.runtime):
            assert not folder.exists(), f"{folder} outlived the mesh"

    def restart_all(self) -> None:
        """Stops everything and starts it again on the same data."""
        self.stop()
        self.start()

    def kill(self, name: str) -> None:
        """Kills a store or a service as a crash would, and waits until it is gone; it comes back by itself."""
        self._call(self._running.kill(name))

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until every process does its job. Raises MeshError with what is missing."""
        self._call(self._running.wait_ready(timeout_s))

    def wait_until(self, holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        """Asks until `holds` is true. Fails with `what` was waited for."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, f"within {timeout_s:.0f} s: {what}\n{self.log_tail()}"
            time.sleep(POLL_S)

    @property
    def info(self) -> MeshInfo:
        """Where everything is."""
        return self._running.info

    @property
    def gateway_address(self) -> str:
        return self.info.gateway_address

    @property
    def http_address(self) -> str:
        return self.info.http_address

    @property
    def data_dir(self) -> Path:
        return self.info.folders.data

    @property
    def services(self) -> dict[str, int]:
        """Process ids of the stores and services by name; those of a node end with `@node0`."""
        return self._running.services

    @property
    def capacity_bytes(self) -> int:
        """Of the first device of a node."""
        return self._options.parsed_devices()[0].capacity_bytes

    def client(self, api_key: str | None = None) -> rouse.Client:
        """A client of this mesh, closed by `stop`; with its administrator's key unless another one is given."""
        tls, own = self.info.tls, self.info.api_key_file
        if api_key is None and own is not None:
            api_key = own.read_text()
        client = rouse.Client(self.gateway_address, ca=tls.files.ca if tls is not None else None, api_key=api_key)
        self._clients.append(client)
        return client

    def channel(self, address: str) -> grpc.Channel:
        """To a service, as one of the mesh."""
        tls = self.info.tls
        if tls is None:
            return grpc.insecure_channel(address)
        return grpc.secure_channel(address, tls.channel_credentials())

    def cluster(self, method: str, request: Any) -> Any:
        """Calls ClusterService."""
        with self.channel(self.info.addresses["cluster-manager"]) as channel:
            return getattr(cluster.ClusterServiceStub(channel), method)(request, timeout=10)

    def instance_pids(self, function: str) -> list[int]:
        """Process ids of a function's instances that live."""
        found = []
        for entry in self.cluster("ListNodes", cluster.ListNodesRequest()).nodes:
            with self.channel(entry.coordinator_address) as channel:
                stub = coordination.CoordinationServiceStub(channel)
                rows = stub.ListInstances(coordination.ListInstancesRequest(), timeout=10).instances
            found += [row.pid for row in rows if row.function == function and psutil.pid_exists(row.pid or -1)]
        return found

    def footprint(self) -> Footprint:
        """What the mesh keeps: bytes on devices, in host memory, on disk and in the object store; rows."""
        return measure(self.info)

    def log_tail(self, lines: int = 40) -> str:
        """The end of the mesh's log, for messages."""
        path = self.info.folders.logs / "rouse.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])

    @property
    def _running(self) -> EmbeddedMesh:
        assert self._mesh is not None, "start the mesh first"
        return self._mesh

    def _end(self) -> None:
        assert self._thread is not None
        assert self._loop is not None
        assert self._leave is not None
        self._loop.call_soon_threadsafe(self._leave.set)
        self._outcome.result(CALL_TIMEOUT_S)
        self._thread.join(CALL_TIMEOUT_S)
        self._thread = None

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    def _run(self, entered: concurrent.futures.Future[None], outcome: concurrent.futures.Future[None]) -> None:
        async def body() -> None:
            self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
            async with EmbeddedMesh(self._options) as self._mesh:
                entered.set_result(None)
                await self._leave.wait()

        try:
            asyncio.run(body())
        except BaseException as error:
            (outcome if entered.done() else entered).set_exception(error)
            raise
        outcome.set_result(None)
