"""What an instance may see, say, allocate and ask for."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rouse_common.errors import Internal, PermissionDenied
from rouse_common.rpc import Channels, call
from rouse_contracts import coordination
from rouse_testkit import models
from rouse_testkit.coordinator_node import (
    TIMEOUT_S,
    Node,
    attach,
    execute,
    identity,
    mode_of,
    python,
)

Start = Callable[..., Awaitable[Node]]


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
