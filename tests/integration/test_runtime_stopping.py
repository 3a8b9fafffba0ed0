"""Requests that are cancelled, held back or never end, in real instance processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from rouse_common.errors import FailedPrecondition, Internal, RouseError
from rouse_testkit.instances import ONE, function, running, traces, until_line

GATED = """
    class Function:
        def predict(self, inputs):
            print("begun")
            open("{gate}").read()
            return {{"y": inputs["x"]}}
"""


async def test_one_request_at_a_time_and_detach_waits_for_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    staged = function(tmp_path, GATED.format(gate=gate))
    async with running(tmp_path, staged) as instance:
        first = asyncio.create_task(instance.infer(ONE))
        await until_line(instance, "begun")
        with pytest.raises(FailedPrecondition) as busy:
            await instance.infer(ONE)
        assert busy.value.reason == "EXECUTOR_BUSY"
        with pytest.raises(Internal) as caught:
            await instance.detach(timeout_s=0.5)
        assert caught.value.reason == "EXECUTOR_BUSY"
        waiting = asyncio.create_task(instance.detach())
        (await asyncio.to_thread(gate.open, "w")).close()
        assert (await first)["y"].tolist() == [1]
        await waiting


STUBBORN = """
    import os, time
    class Function:
        def predict(self, inputs):
            self.wait(["begun"])
            return {{"y": inputs["x"]}}

        def wait(self, words):
            try:
                while words:
                    print(words.pop())
                while not os.path.exists("{flag}"):
                    time.sleep(0.01)
            except BaseException:
                self.wait(["held on"])
"""


async def test_a_cancelled_request_that_does_not_stop_keeps_the_executor_until_it_ends(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with running(tmp_path, function(tmp_path, STUBBORN.format(flag=flag))) as instance:
        first = asyncio.create_task(instance.infer(ONE))
        await until_line(instance, "begun")
        first.cancel()
        await until_line(instance, "the result is dropped")
        await until_line(instance, "held on", 2)
        with pytest.raises(FailedPrecondition) as busy:
            await instance.infer(ONE)
        assert busy.value.reason == "EXECUTOR_BUSY"
        flag.touch()
        await instance.detach()  # waits for it
        assert (await instance.infer(ONE))["y"].tolist() == [1]


@pytest.mark.parametrize("operation", ["total += 1", "matrix = torch.relu(matrix @ matrix)"])
async def test_a_cancelled_request_is_stopped_between_two_operations(tmp_path: Path, operation: str) -> None:
    staged = function(
        tmp_path,
        f"""
        import torch
        class Function:
            def predict(self, inputs):
                total, matrix = 0, torch.eye(64)
                if inputs["x"][0] == 1:
                    print("begun")
                    while True:
                        {operation}
                return {{"y": inputs["x"]}}
        """,
    )
    instance = running(tmp_path, staged, ROUSE_INSTANCE_TRACE_DIR=str(tmp_path / "traces"))
    async with instance:
        for count in (1, 2, 3):
            endless = asyncio.create_task(instance.infer(ONE))
            await until_line(instance, "begun", count)
            endless.cancel()
            await until_line(instance, "stopped request=r1", count)
            await instance.detach()
            assert (await instance.infer({"x": np.zeros(2, dtype=np.float32)}))["y"].tolist() == [0, 0]
    spent = [float(span["attributes"]["device_ms"]) for span in traces(tmp_path, "execute")]
    assert len(spent) == 6
    assert sum(spent) > 0


async def test_a_hanging_request_ends_the_process(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    staged = function(tmp_path, GATED.format(gate=gate))
    async with running(tmp_path, staged, ROUSE_INSTANCE_HANG_GRACE_S="0.5") as instance:
        with pytest.raises(RouseError):
            await instance.infer(ONE, timeout_s=0.5)
        assert await instance.process.wait() == 70
    assert any("hung: request r1" in line and "function.py" in line for line in instance.lines)


async def test_code_that_holds_the_interpreter_is_ended_by_the_kernel(tmp_path: Path) -> None:
    staged = function(
        tmp_path,
        """
        import ctypes
        class Function:
            def predict(self, inputs):
                ctypes.PyDLL(None).pause()  # keeps the interpreter's lock
                return {"y": inputs["x"]}
        """,
    )
    async with running(tmp_path, staged, ROUSE_INSTANCE_HANG_GRACE_S="0.1") as instance:
        with pytest.raises(RouseError):
            await instance.infer(ONE, timeout_s=0.5)
        assert await instance.process.wait() == -signal.SIGALRM
