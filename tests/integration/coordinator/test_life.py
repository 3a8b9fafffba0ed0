"""How instances start, are reported and end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from rouse_common.errors import InvalidArgument, ResourceExhausted
from rouse_contracts.functions import FunctionVersion
from rouse_testkit.coordinator_node import (
    Node,
    alive,
    execute,
    identity,
    left_in,
    python,
)

Start = Callable[..., Awaitable[Node]]


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
    assert (entry.router_address, entry.link_address) == (node.node_router.address, "127.0.0.1:7999")
    assert [(info.name, info.kind, info.capacity_bytes) for info in entry.devices] == [("cpu0", "host", 1 << 30)]
    beat = node.cluster.heartbeats[-1]
    assert beat.incarnation == entry.incarnation
    assert (beat.report.queued_requests, beat.report.executing_requests) == (3, 1)
    assert beat.report.devices[0].name == "cpu0"


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


async def test_instances_are_bounded_and_their_ids_checked(tmp_path: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged, flags=("--max-instances", "1"))
    await node.coordinator.run_instance("i1", staged)
    with pytest.raises(ResourceExhausted) as caught:
        await node.coordinator.run_instance("i2", staged)
    assert caught.value.reason == "INSTANCE_LIMIT"
    with pytest.raises(InvalidArgument):
        await node.coordinator.run_instance("../i3", staged)


async def test_instances_that_the_control_plane_ended_are_stopped(tmp_path: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    pid = node.gpu_server.executors[0].pid
    node.cluster.to_stop.add("i1")
    await node.until_state("i1", "ENDED")
    assert not psutil.pid_exists(pid)


async def test_an_orderly_stop_ends_and_reports_everything(tmp_path: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    pid = node.gpu_server.executors[0].pid
    assert await node.coordinator.stop() == 0
    assert not psutil.pid_exists(pid)
    assert node.cluster.states("i1")[-1] == "ENDED"


async def test_a_version_is_staged_ahead_of_an_instance(tmp_path: Path, start: Start) -> None:
    staged = identity(tmp_path)
    node = await start(staged)
    node.gpu_server.staging.clear()
    for _ in range(3):
        await node.coordinator.stage_ahead(staged.version)
    node.gpu_server.staging.set()
    await node.gpu_server.until(lambda: node.gpu_server.stagings == 1)
    with pytest.raises(InvalidArgument) as refused:
        await node.coordinator.stage_ahead(FunctionVersion())
    assert refused.value.reason == "BAD_VERSION"
