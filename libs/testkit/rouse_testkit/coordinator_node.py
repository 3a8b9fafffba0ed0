"""A real coordinator process between in-process neighbours, and small functions to run on it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from rouse_common.link import Links
from rouse_common.rpc import Channels, call
from rouse_contracts import arrays, coordination, device
from rouse_contracts.functions import FunctionVersion, TensorBatch
from rouse_contracts.links import EXECUTE, executor_link
from rouse_testkit import models
from rouse_testkit.artefacts import Staged, stage
from rouse_testkit.doubles_coordination import ClusterDouble, GpuServerDouble, NodeRouterDouble
from rouse_testkit.links import ask

TIMEOUT_S = 60.0
SECRETS = {"ROUSE_SECRET": "s3cret", "DATABASE_URL": "postgresql://u:s3cret@db/x", "AWS_SECRET_ACCESS_KEY": "s3cret"}


class Coordinator:
    """The process, its lines and stubs to it."""

    def __init__(self, runtime_dir: Path, *flags: str, user: int = 0) -> None:
        """Args: user: whom root runs it as; 0: itself."""
        self.runtime_dir, self._flags = runtime_dir, flags
        self._become = (sys.executable, "-m", "rouse_testkit.as_user", str(user)) if user else ()
        self.lines: list[str] = []
        self._line = asyncio.Condition()
        self._channels = Channels(64 << 20)

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *self._become, sys.executable, "-m", "rouse_coordinator", *self._flags,
            "--runtime-dir", str(self.runtime_dir),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **SECRETS, "ROUSE_PARENT_PID": str(os.getpid())},
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._reader = asyncio.create_task(self._read(self.process.stderr))
        ready = (await self.process.stdout.readline()).decode().split()
        assert ready[:1] == ["ready"], self.lines
        self.address = ready[1]
        self.stub = coordination.CoordinationServiceStub(self._channels.get(self.address))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            async with self._line:
                self.lines.append(line.decode().rstrip("\n"))
                self._line.notify_all()

    async def until_line(self, text: str) -> str:
        """The first line that holds a text."""
        async with asyncio.timeout(TIMEOUT_S), self._line:
            await self._line.wait_for(lambda: any(text in line for line in self.lines))
        return next(line for line in self.lines if text in line)

    async def run_instance(self, instance_id: str, staged: Staged) -> None:
        request = coordination.StartInstanceRequest(instance_id=instance_id, version=staged.version)
        await call(self.stub.StartInstance, request, timeout_s=TIMEOUT_S)

    async def stage_ahead(self, version: FunctionVersion) -> None:
        await call(self.stub.StageVersion, coordination.StageVersionRequest(version=version), timeout_s=TIMEOUT_S)

    async def end_instance(self, instance_id: str, grace_ms: int = 5000) -> None:
        request = coordination.StopInstanceRequest(instance_id=instance_id, grace_ms=grace_ms, reason="scaled down")
        await call(self.stub.StopInstance, request, timeout_s=TIMEOUT_S)

    async def rows(self) -> dict[str, coordination.Registration]:
        answer = await call(self.stub.ListInstances, coordination.ListInstancesRequest(), timeout_s=TIMEOUT_S)
        return {row.instance_id: row for row in answer.instances}

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(TIMEOUT_S):
            code = await self.process.wait()
            await self._reader
        await self._channels.close()
        return code


@dataclass
class Node:
    """A coordinator between its neighbours."""

    coordinator: Coordinator
    gpu_server: GpuServerDouble
    node_router: NodeRouterDouble
    cluster: ClusterDouble

    async def until_state(self, instance_id: str, state: str) -> str:
        """Waits for a report; its reason."""
        await self.cluster.until(lambda: state in self.cluster.states(instance_id))
        index = self.cluster.states(instance_id).index(state)
        return self.cluster.reports[instance_id][index].reason


def python(tmp_path: Path, name: str, code: str, **options: str) -> Staged:
    folder = models.write_function(tmp_path / name, name, code, [("x", "FP32", [-1])], [("y", "FP32", [-1])])
    (tmp_path / "images").mkdir(exist_ok=True)
    return stage(
        folder, tmp_path / "images", name=name, handler="function:Function", options=options,
        inputs=[("x", "FP32", [-1])], outputs=[("y", "FP32", [-1])],
    )  # fmt: skip


def identity(tmp_path: Path, name: str = "identity") -> Staged:
    return python(tmp_path, name, models.IDENTITY)


async def attach(address: str, staged: Staged) -> None:
    """Attaches the host copy as if it were a device's."""
    channels = Channels(64 << 20)
    try:
        request = device.AttachRequest(
            segment_path=staged.image_path, size_bytes=staged.version.weights_bytes, device="cpu0", lease_id="any"
        )
        await call(device.ExecutorServiceStub(channels.get(address)).Attach, request, timeout_s=TIMEOUT_S)
    finally:
        await channels.close()


async def execute(address: str, x: list[float], timeout_s: float = TIMEOUT_S) -> list[float]:
    links = Links(64 << 20)
    try:
        batch = arrays.to_batch({"x": np.array(x, dtype=np.float32)})
        request = device.ExecuteRequest(lease_id="any/1", request_id="r", inputs=batch.SerializeToString())
        answer = await ask(links, executor_link(address), EXECUTE, request, device.ExecuteResponse, timeout_s)
        return list(arrays.from_batch(TensorBatch.FromString(answer.outputs))["y"])
    finally:
        await links.close()


def left_in(folder: Path, part: str = "") -> list[str]:
    """Names of files that hold `part`."""
    return sorted(path.name for path in folder.iterdir() if part in path.name)


def mode_of(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


def alive(pid: int) -> bool:
    return bool(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
