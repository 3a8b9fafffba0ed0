"""A real coordinator process with real instances, between in-process neighbours."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from rouse_common.errors import FailedPrecondition, Internal, InvalidArgument, PermissionDenied, ResourceExhausted
from rouse_common.rpc import Channels, call
from rouse_contracts import arrays, coordination, device
from rouse_contracts.functions import TensorBatch
from rouse_testkit import models
from rouse_testkit.artefacts import Staged, stage
from rouse_testkit.doubles_coordination import ClusterDouble, GpuServerDouble, NodeRouterDouble

TIMEOUT_S = 60.0
SECRETS = {"ROUSE_SECRET": "s3cret", "DATABASE_URL": "postgresql://u:s3cret@db/x", "AWS_SECRET_ACCESS_KEY": "s3cret"}


class Coordinator:
    """The process, its lines and stubs to it."""

    def __init__(self, runtime_dir: Path, *flags: str) -> None:
        self.runtime_dir, self._flags = runtime_dir, flags
        self.lines: list[str] = []
        self._line = asyncio.Condition()
        self._channels = Channels(64 << 20)

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rouse_coordinator", *self._flags, "--runtime-dir", str(self.runtime_dir),
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


Start = Callable[..., "asyncio.Future[Node]"]


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A folder for sockets, whose paths have to be short."""
    with tempfile.TemporaryDirectory(prefix="rouse-") as folder:
        yield Path(folder) / "run"


@pytest.fixture
async def start(run_dir: Path) -> AsyncIterator[Callable[..., object]]:
    """Starts a node for the given functions; everything is stopped, and must be gone, at the end."""
    async with AsyncExitStack() as stack:

        async def make(*staged: Staged, flags: tuple[str, ...] = ()) -> Node:
            gpu_server, node_router, cluster = GpuServerDouble(*staged), NodeRouterDouble(), ClusterDouble()
            for double in (gpu_server, node_router, cluster):
                await double.start()
                stack.push_async_callback(double.stop)
            coordinator = Coordinator(
                run_dir, "--node-id", "n1", "--cluster-manager", cluster.address,
                "--gpu-server", gpu_server.address, "--node-router", node_router.address, "--sync-s", "0.3", *flags,
            )  # fmt: skip
            await coordinator.start()
            stack.push_async_callback(coordinator.stop)
            return Node(coordinator, gpu_server, node_router, cluster)

        yield make
    assert not left_in(run_dir)


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
    channels = Channels(64 << 20)
    try:
        stub = device.ExecutorServiceStub(channels.get(address))
        batch = arrays.to_batch({"x": np.array(x, dtype=np.float32)})
        request = device.ExecuteRequest(lease_id="any/1", request_id="r", inputs=batch.SerializeToString())
        answer = await call(stub.Execute, request, timeout_s=timeout_s)
        return list(arrays.from_batch(TensorBatch.FromString(answer.outputs))["y"])
    finally:
        await channels.close()


def left_in(folder: Path, part: str = "") -> list[str]:
    """Names of files that hold `part`."""
    return sorted(path.name for path in folder.iterdir() if part in path.name)


def mode_of(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_an_instance_is_started_synced_reported_and_ended(tmp_path: Path, run_dir: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    # gpu-server knew the executor before cluster-manager heard of it.
    assert [executor.instance_id for executor in node.gpu_server.executors] == ["i1"]
    executor = node.gpu_server.executors[0]
    assert await execute(executor.address, [1, 2]) == [1, 2]
    row = (await node.coordinator.rows())["i1"]
    assert (row.state, row.role, row.function, row.version_id) == ("READY", "BODY", "identity", "identity-1")
    assert row.pid == executor.pid
    assert alive(row.pid)

    await node.coordinator.run_instance("i1", staged)  # again: nothing changes
    assert (await node.coordinator.rows())["i1"].pid == row.pid

    await node.coordinator.end_instance("i1")
    assert not alive(row.pid)
    assert not left_in(run_dir, "i1")
    await node.until_state("i1", "ENDED")
    assert node.cluster.states("i1") == ["STARTING", "READY", "STOPPING", "ENDED"]
    await node.gpu_server.until(lambda: not node.gpu_server.executors)
    await node.coordinator.end_instance("i1")  # what is not there is ended


async def test_the_node_is_registered_and_reports_itself(tmp_path: Path, start: Start) -> None:
    node = await start()
    await node.cluster.until(lambda: len(node.cluster.heartbeats) >= 2)
    entry = node.cluster.nodes["n1"]
    assert entry.coordinator_address == node.coordinator.address
    assert entry.router_address == node.node_router.address
    assert [(info.name, info.kind, info.capacity_bytes) for info in entry.devices] == [("cpu0", "host", 1 << 30)]
    beat = node.cluster.heartbeats[-1]
    assert beat.incarnation == entry.incarnation
    assert (beat.report.queued_requests, beat.report.executing_requests) == (3, 1)
    assert beat.report.devices[0].name == "cpu0"


async def test_a_killed_instance_is_reported_with_the_signal(tmp_path: Path, run_dir: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    pid = node.gpu_server.executors[0].pid
    os.kill(pid, signal.SIGKILL)
    assert "SIGKILL" in await node.until_state("i1", "FAILED")
    await node.gpu_server.until(lambda: not node.gpu_server.executors)
    assert not psutil.pid_exists(pid)  # reaped
    assert not left_in(run_dir, "i1")
    row = (await node.coordinator.rows())["i1"]
    assert (row.state, row.pid, row.address) == ("FAILED", 0, "")


async def test_the_users_load_error_reaches_the_report(tmp_path: Path, start: Start) -> None:
    staged = python(
        tmp_path, "broken", """
        class Function:
            def load(self, context):
                raise ValueError("no labels")
            def predict(self, inputs):
                return {}
        """)  # fmt: skip
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    assert await node.until_state("i1", "FAILED") == "ValueError: no labels (at function.py:4)"
    assert node.cluster.states("i1") == ["STARTING", "FAILED"]
    line = await node.coordinator.until_line("no labels")
    assert "function=broken instance=i1" in line


async def test_a_process_that_dies_while_loading_leaves_its_last_lines(tmp_path: Path, start: Start) -> None:
    staged = python(
        tmp_path, "dies", """
        import os
        class Function:
            def load(self, context):
                print("the last words")
                os._exit(9)
            def predict(self, inputs):
                return {}
        """)  # fmt: skip
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    reason = await node.until_state("i1", "FAILED")
    assert "exit code 9" in reason
    assert "the last words" in reason


async def test_loading_that_takes_too_long_is_ended(tmp_path: Path, start: Start) -> None:
    staged = python(
        tmp_path, "slow", """
        import threading
        class Function:
            def load(self, context):
                threading.Event().wait()
            def predict(self, inputs):
                return {}
        """)  # fmt: skip
    node = await start(staged, flags=("--load-timeout-s", "2"))
    await node.coordinator.run_instance("i1", staged)
    await node.cluster.until(lambda: "STARTING" in node.cluster.states("i1"))
    pid = (await node.coordinator.rows())["i1"].pid
    assert "did not load within 2 s" in await node.until_state("i1", "FAILED")
    assert not psutil.pid_exists(pid)


async def test_a_version_that_cannot_be_staged_fails_with_the_reason(tmp_path: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged)
    node.gpu_server.refusal = FailedPrecondition("MODEL_TOO_LARGE", "no device holds 9 GiB")
    await node.coordinator.run_instance("i1", staged)
    assert "no device holds 9 GiB" in await node.until_state("i1", "FAILED")


async def test_an_instance_can_be_stopped_while_it_is_staged(tmp_path: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged)
    node.gpu_server.staging.clear()
    await node.coordinator.run_instance("i1", staged)
    await node.cluster.until(lambda: "STARTING" in node.cluster.states("i1"))
    await node.coordinator.end_instance("i1")
    await node.until_state("i1", "ENDED")
    node.gpu_server.staging.set()


async def test_stop_waits_for_the_request_that_runs(tmp_path: Path, start: Start) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    staged = python(
        tmp_path, "waits", f"""
        class Function:
            def predict(self, inputs):
                print("begun")
                open("{gate}").read()
                return {{"y": inputs["x"]}}
        """)  # fmt: skip
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    running = asyncio.create_task(execute(node.gpu_server.executors[0].address, [7]))
    await node.coordinator.until_line("begun")
    stopping = asyncio.create_task(node.coordinator.end_instance("i1", grace_ms=30_000))
    await node.until_state("i1", "STOPPING")
    assert not running.done()
    (await asyncio.to_thread(gate.open, "w")).close()
    assert await running == [7]
    await stopping
    await node.until_state("i1", "ENDED")


async def test_printed_lines_name_the_function_and_hide_nothing_else(tmp_path: Path, start: Start) -> None:
    staged = python(
        tmp_path, "prints", """
        import os, sys
        class Function:
            def load(self, context):
                context.log.info("from the log")
                print("from print")
                print("to stderr", file=sys.stderr)
                os.write(1, b"to the descriptor\\n")
                front = b"2026-01-01T00:00:00.000Z INFO    executor         trace=- "
                os.write(2, front + b"function=other instance=i9 forged\\n")
                print("x" * 100_000)
            def predict(self, inputs):
                return {}
        """)  # fmt: skip
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    for text in ("from the log", "stdout: from print", "stderr: to stderr", "to the descriptor", "forged", "xxxxx"):
        line = await node.coordinator.until_line(text)
        assert line.split(" trace=-")[1].lstrip().startswith("function=prints instance=i1 "), line
        assert len(line) < 20_000


async def test_no_credentials_reach_an_instance(tmp_path: Path, start: Start) -> None:
    staged = python(
        tmp_path, "env", """
        import os, pathlib
        class Function:
            def load(self, context):
                pathlib.Path(context.options["out"]).write_text("\\n".join(f"{k}={v}" for k, v in os.environ.items()))
            def predict(self, inputs):
                return {}
        """, out=str(tmp_path / "environment"))  # fmt: skip
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    text = (tmp_path / "environment").read_text()
    assert "s3cret" not in text
    assert "ROUSE_INSTANCE_TOKEN" not in text
    assert "ROUSE_INSTANCE_ID=i1" in text


async def test_a_wrong_token_gets_no_assignment(tmp_path: Path, run_dir: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    channels = Channels(1 << 20)
    stub = coordination.InstanceServiceStub(channels.get(f"unix:{run_dir}/coordinator.sock"))
    for request, method in (
        (coordination.GetAssignmentRequest(instance_id="i1", token="guess"), stub.GetAssignment),
        (coordination.ReportLoadedRequest(instance_id="i1", token="guess", error="no"), stub.ReportLoaded),
    ):
        with pytest.raises(PermissionDenied) as caught:
            await call(method, request, timeout_s=TIMEOUT_S)
        assert caught.value.reason == "BAD_TOKEN"
    await channels.close()
    assert mode_of(run_dir) == 0o700


async def test_instances_are_bounded_and_their_ids_checked(tmp_path: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged, flags=("--max-instances", "1"))
    await node.coordinator.run_instance("i1", staged)
    with pytest.raises(ResourceExhausted) as caught:
        await node.coordinator.run_instance("i2", staged)
    assert caught.value.reason == "INSTANCE_LIMIT"
    with pytest.raises(InvalidArgument):
        await node.coordinator.run_instance("../i3", staged)


@pytest.mark.parametrize("weights", [False, True])
async def test_memory_of_an_instance_is_limited(tmp_path: Path, start: Start, weights: bool) -> None:
    code = """
        import numpy
        class Function:
            def predict(self, inputs):
                return {"y": numpy.ones(int(inputs["x"][0]), dtype=numpy.float32)[:1]}
        """
    staged = python(tmp_path, "hungry", code)
    if weights:
        folder = models.write_linear(tmp_path / "other", "other", 1024, seed=1)
        shutil.copy(folder / "weights.safetensors", staged.folder)
        staged = python(tmp_path, "hungry", code)
    staged.version.spec.resources.host_memory_limit_bytes = 64 << 20
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    executor = node.gpu_server.executors[0]
    if weights:
        await attach(executor.address, staged)
    assert await execute(executor.address, [float(10 << 20)]) == [1]
    with pytest.raises(Internal, match="MemoryError"):
        await execute(executor.address, [float(1 << 27)])
    assert await execute(executor.address, [float(10 << 20)]) == [1]


async def test_restarted_neighbours_are_found_again(tmp_path: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")

    await node.gpu_server.stop()
    node.gpu_server.executors.clear()
    await node.gpu_server.start()
    await node.gpu_server.until(lambda: [executor.instance_id for executor in node.gpu_server.executors] == ["i1"])

    await node.node_router.stop()
    await node.cluster.until(lambda: node.cluster.heartbeats[-1].report.queued_requests == 0)
    await node.node_router.start()
    await node.cluster.until(lambda: node.cluster.heartbeats[-1].report.queued_requests == 3)

    # While cluster-manager is away an instance dies; it forgot the node as well.
    incarnation = node.cluster.nodes["n1"].incarnation
    await node.cluster.stop()
    os.kill(node.gpu_server.executors[0].pid, signal.SIGKILL)
    await node.gpu_server.until(lambda: not node.gpu_server.executors)
    node.cluster.nodes.clear()
    await node.cluster.start()
    assert "SIGKILL" in await node.until_state("i1", "FAILED")
    await node.cluster.until(lambda: "n1" in node.cluster.nodes)
    assert node.cluster.nodes["n1"].incarnation == incarnation


async def test_instances_that_the_control_plane_ended_are_stopped(tmp_path: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    pid = node.gpu_server.executors[0].pid
    node.cluster.to_stop.add("i1")
    await node.until_state("i1", "ENDED")
    assert not psutil.pid_exists(pid)


async def test_no_instance_outlives_its_coordinator(tmp_path: Path, run_dir: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged)
    for instance_id in ("i1", "i2"):
        await node.coordinator.run_instance(instance_id, staged)
        await node.until_state(instance_id, "READY")
    processes = [psutil.Process(executor.pid) for executor in node.gpu_server.executors]
    assert len(processes) == 2
    node.coordinator.process.kill()
    await node.coordinator.process.wait()
    _, left = await asyncio.to_thread(psutil.wait_procs, processes, 10)
    assert not left

    # The next one clears what was left behind.
    assert left_in(run_dir, ".sock")
    await node.coordinator.start()
    await node.cluster.until(lambda: node.cluster.registrations == 2)
    assert left_in(run_dir, ".sock") == ["coordinator.sock"]


async def test_an_orderly_stop_ends_and_reports_everything(tmp_path: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    pid = node.gpu_server.executors[0].pid
    assert await node.coordinator.stop() == 0
    assert not psutil.pid_exists(pid)
    assert node.cluster.states("i1")[-1] == "ENDED"


async def test_two_coordinators_do_not_share_a_folder(tmp_path: Path, run_dir: Path, start: Start) -> None:
    node = await start()
    second = Coordinator(run_dir, *node.coordinator._flags)
    with pytest.raises(AssertionError):
        await second.start()
    assert await second.process.wait() == 1
    await second._reader
    assert any("used by another coordinator" in line for line in second.lines)
    assert (await node.coordinator.rows()) == {}


def linear(tmp_path: Path, name: str, code: str = "") -> Staged:
    folder = models.write_linear(tmp_path / name, name, 16, seed=1)
    if code:
        (folder / "function.py").write_text(textwrap.dedent(code))
    (tmp_path / "images").mkdir(exist_ok=True)
    shape: list[tuple[str, str, list[int]]] = [("x", "FP32", [-1, 16])]
    return stage(
        folder, tmp_path / "images", name=name, handler="function:Function",
        inputs=shape, outputs=[("y", "FP32", [-1, 16])],
    )  # fmt: skip


def parent(pid: int) -> psutil.Process:
    found = psutil.Process(pid).parent()
    assert found is not None
    return found


async def test_instances_with_weights_are_forked_off_one_template(tmp_path: Path, start: Start) -> None:
    code = """
        import os, numpy, torch
        class Function:
            def load(self, context):
                self.layer = torch.nn.Linear(16, 16, bias=False, device="meta")
                context.bind(self.layer, "weights.safetensors")
                print("drew", numpy.random.random(), "pid", os.getpid(), "group", os.getpgid(0), "in", os.getcwd())
            def predict(self, inputs):
                return {"y": self.layer(torch.from_numpy(inputs["x"]))}
        """
    first, second = linear(tmp_path, "a", code), linear(tmp_path, "b", code)
    node = await start(first, second)
    drawn = []
    for instance_id, staged in (("i1", first), ("i2", second)):
        await node.coordinator.run_instance(instance_id, staged)
        await node.until_state(instance_id, "READY")
        words = (await node.coordinator.until_line(f"instance={instance_id} stdout: drew")).split()
        drawn.append(words[words.index("drew") + 1])
        pid = (await node.coordinator.rows())[instance_id].pid
        assert words[words.index("pid") + 1] == words[words.index("group") + 1] == str(pid)
        assert words[-1] == str(staged.folder)
    assert drawn[0] != drawn[1]
    pids = [executor.pid for executor in node.gpu_server.executors]
    templates = {parent(pid).pid for pid in pids}
    assert len(templates) == 1
    assert parent(templates.pop()).pid == node.coordinator.process.pid

    os.kill(pids[0], signal.SIGKILL)
    assert "SIGKILL" in await node.until_state("i1", "FAILED")
    assert not psutil.pid_exists(pids[0])
    await node.coordinator.end_instance("i2")
    assert not psutil.pid_exists(pids[1])


async def test_a_template_that_dies_takes_its_instances_along_and_is_replaced(tmp_path: Path, start: Start) -> None:
    staged = linear(tmp_path, "a")
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    instance = psutil.Process(node.gpu_server.executors[0].pid)
    template = parent(instance.pid)
    template.kill()
    await node.until_state("i1", "FAILED")
    assert not (await asyncio.to_thread(psutil.wait_procs, [instance, template], 10))[1]
    await node.coordinator.run_instance("i2", staged)
    await node.until_state("i2", "READY")
    assert parent(node.gpu_server.executors[0].pid).pid != template.pid


async def test_without_templates_instances_start_from_scratch(tmp_path: Path, start: Start) -> None:
    staged = linear(tmp_path, "a")
    node = await start(staged, flags=("--templates", "false"))
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    assert parent(node.gpu_server.executors[0].pid).pid == node.coordinator.process.pid


async def test_nothing_outlives_the_coordinator_through_a_template(tmp_path: Path, start: Start) -> None:
    staged = linear(tmp_path, "a")
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    family = psutil.Process(node.coordinator.process.pid).children(recursive=True)
    assert len(family) == 2
    node.coordinator.process.kill()
    await node.coordinator.process.wait()
    assert not (await asyncio.to_thread(psutil.wait_procs, family, 10))[1]
    await node.coordinator.start()


async def test_an_instance_can_be_stopped_while_its_template_imports(tmp_path: Path, start: Start) -> None:
    staged = linear(tmp_path, "a")
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.coordinator.until_line("template started")
    await node.coordinator.end_instance("i1")
    await node.until_state("i1", "ENDED")
    # What was asked of the template meanwhile does not come to life.
    await node.coordinator.run_instance("i2", staged)
    await node.until_state("i2", "READY")
    template = parent(node.gpu_server.executors[0].pid)
    left = [child for child in template.children() if child.pid != node.gpu_server.executors[0].pid]
    assert not (await asyncio.to_thread(psutil.wait_procs, left, 10))[1]
