"""Instances that are forked off a process with the libraries imported."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from rouse_testkit import models
from rouse_testkit.artefacts import Staged, stage
from rouse_testkit.coordinator_node import (
    Node,
)

Start = Callable[..., Awaitable[Node]]


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
