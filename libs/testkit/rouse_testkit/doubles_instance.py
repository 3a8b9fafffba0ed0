"""One real instance process of a function, started against an in-process double of the coordinator."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import numpy as np

from rouse_common.errors import PermissionDenied
from rouse_common.link import Links
from rouse_common.rpc import Channels, RpcServer, call
from rouse_contracts import arrays, coordination, device
from rouse_contracts.functions import TensorBatch
from rouse_contracts.links import EXECUTE, executor_link
from rouse_testkit.artefacts import Staged
from rouse_testkit.links import ask
from rouse_testkit.served import MAX_MESSAGE_BYTES

CALL_TIMEOUT_S = 60.0
TOKEN = "instance-token"


class CoordinatorDouble(coordination.InstanceServiceServicer):
    """Gives one assignment and keeps what the instance reports."""

    def __init__(self, staged: Staged) -> None:
        self._staged = staged
        self.reported: asyncio.Future[coordination.ReportLoadedRequest] = asyncio.get_running_loop().create_future()

    async def GetAssignment(
        self, request: coordination.GetAssignmentRequest, context: grpc.aio.ServicerContext
    ) -> coordination.GetAssignmentResponse:
        if request.token != TOKEN:
            raise PermissionDenied("BAD_TOKEN", "that is not the instance's token")
        return coordination.GetAssignmentResponse(
            version=self._staged.version,
            artefact=self._staged.artefact,
            artefact_path=str(self._staged.folder),
            image_path=self._staged.image_path,
        )

    async def ReportLoaded(
        self, request: coordination.ReportLoadedRequest, context: grpc.aio.ServicerContext
    ) -> coordination.ReportLoadedResponse:
        self.reported.set_result(request)
        return coordination.ReportLoadedResponse()


class RunningInstance:
    """`async with RunningInstance(staged, folder)`: the process, its socket and what it prints.

    On leaving, the process is stopped by SIGTERM and has to end by itself.
    """

    def __init__(self, staged: Staged, runtime_dir: Path, **environment: str) -> None:
        self.staged, self.runtime_dir = staged, runtime_dir
        self.instance_id = "i1"
        self.error = ""
        self.address = ""
        self.load_ms = 0.0
        self.lines: list[str] = []
        self._printed = asyncio.Condition()
        self._environment = environment
        self._channels, self.links = Channels(MAX_MESSAGE_BYTES), Links(MAX_MESSAGE_BYTES)

    async def __aenter__(self) -> RunningInstance:
        coordinator = CoordinatorDouble(self.staged)
        self._server = RpcServer(f"unix:{self.runtime_dir}/c.sock", max_message_bytes=MAX_MESSAGE_BYTES)
        self._server.add(coordination.add_InstanceServiceServicer_to_server, coordinator, coordination.DESCRIPTOR)
        await self._server.start()
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-m", "rouse_runtime", stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=self._env(),
        )  # fmt: skip
        self._reader = asyncio.create_task(self._read())
        waiting: list[asyncio.Future[Any]] = [coordinator.reported, asyncio.ensure_future(self.process.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=CALL_TIMEOUT_S)
        if not coordinator.reported.done():
            await self.__aexit__(None, None, None)
            raise AssertionError("the instance did not report:\n" + "\n".join(self.lines))
        report = coordinator.reported.result()
        self.error, self.address, self.load_ms = report.error, report.address, report.load_ms
        return self

    def _env(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "ROUSE_INSTANCE_ID": self.instance_id,
            "ROUSE_INSTANCE_TOKEN": TOKEN,
            "ROUSE_INSTANCE_FUNCTION": self.staged.version.spec.name,
            "ROUSE_COORDINATOR": f"unix:{self.runtime_dir}/c.sock",
            "ROUSE_PARENT_PID": str(os.getpid()),
            **self._environment,
        }

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._printed:
                self.lines.append(line.decode().rstrip("\n"))
                self._printed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a printed line makes the condition true."""
        async with self._printed:
            await self._printed.wait_for(condition)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(20):
                await self.process.wait()
                await self._reader
        except TimeoutError:
            self.process.kill()
            raise
        finally:
            await self.links.close()
            await self._channels.close()
            await self._server.stop(0)

    @property
    def executor(self) -> device.ExecutorServiceStub:
        return device.ExecutorServiceStub(self._channels.get(self.address))

    async def attach(self, segment: Path, attachment: str = "a1", threads: int = 1) -> None:
        """Attaches a device's copy. Raises RouseError."""
        request = device.AttachRequest(
            segment_path=str(segment), size_bytes=self.staged.artefact.layout.image_bytes, device="cpu0",
            threads=threads, lease_id=attachment,
        )  # fmt: skip
        await call(self.executor.Attach, request, timeout_s=CALL_TIMEOUT_S)

    async def detach(self, timeout_s: float = CALL_TIMEOUT_S) -> None:
        await call(self.executor.Detach, device.DetachRequest(), timeout_s=timeout_s)

    async def execute(
        self, request: device.ExecuteRequest, timeout_s: float = CALL_TIMEOUT_S
    ) -> device.ExecuteResponse:
        """One Execute as it is. Raises RouseError."""
        return await ask(self.links, executor_link(self.address), EXECUTE, request, device.ExecuteResponse, timeout_s)

    async def stream(
        self, request: device.ExecuteRequest, timeout_s: float = CALL_TIMEOUT_S
    ) -> AsyncGenerator[device.ExecuteResponse, None]:
        """The responses of a decoupled function as they come. Raises RouseError."""
        parts = [request.SerializeToString()]
        async with aclosing(
            self.links.stream(executor_link(self.address), EXECUTE.encode(), parts, timeout_s)
        ) as messages:
            async for message in messages:
                yield device.ExecuteResponse.FromString(bytes(message))

    async def infer(
        self,
        inputs: dict[str, np.ndarray],
        *,
        lease: str = "a1/1",
        outputs: list[str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> dict[str, np.ndarray]:
        """One request. Raises RouseError."""
        request = device.ExecuteRequest(
            lease_id=lease,
            request_id="r1",
            inputs=arrays.to_batch(inputs).SerializeToString(),
            output_names=outputs or [],
        )
        answer = await self.execute(request, timeout_s)
        return arrays.from_batch(TensorBatch.FromString(answer.outputs))
