"""The gateway as a process: it starts without its neighbours, and stops when it is asked to."""

from __future__ import annotations

import asyncio
import signal
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

NOBODY = "127.0.0.1:1"
ALONE = [
    "--http-listen=127.0.0.1:0",
    f"--cluster-manager={NOBODY}",
    f"--model-repository={NOBODY}",
    f"--scaler={NOBODY}",
    f"--nats=nats://{NOBODY}",
    f"--redis=redis://{NOBODY}/0",
]


async def start(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rouse_gateway",
        *flags,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_alone_it_is_alive_but_not_serving_and_stops_with_code_0(number: signal.Signals) -> None:
    process = await start(*ALONE)
    assert process.stdout is not None
    async with asyncio.timeout(30):
        word, address = (await process.stdout.readline()).decode().split()
        assert word == "ready"
        async with grpc.aio.insecure_channel(address) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        process.send_signal(number)
        _, log = await process.communicate()
    assert process.returncode == 0, log.decode()
    assert "waiting for the routing table" in log.decode()
    assert "Traceback" not in log.decode()


async def test_a_bad_setting_ends_the_start_with_code_2_and_its_name() -> None:
    process = await start("--max-held", "none")
    async with asyncio.timeout(30):
        _, log = await process.communicate()
    assert process.returncode == 2
    assert "--max-held=none" in log.decode()
