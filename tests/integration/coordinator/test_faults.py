"""What dies, hangs, fails to load or goes away, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from rouse_common.errors import FailedPrecondition
from rouse_testkit.coordinator_node import (
    Coordinator,
    Node,
    identity,
    left_in,
    python,
)

Start = Callable[..., Awaitable[Node]]


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


async def test_two_coordinators_do_not_share_a_folder(tmp_path: Path, run_dir: Path, start: Start) -> None:
    node = await start()
    second = Coordinator(run_dir, *node.coordinator._flags)
    with pytest.raises(AssertionError):
        await second.start()
    assert await second.process.wait() == 1
    await second._reader
    assert any("used by another coordinator" in line for line in second.lines)
    assert (await node.coordinator.rows()) == {}
