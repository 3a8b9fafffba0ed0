"""comm-broker and its life as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE

import grpc

from rouse_contracts import broker
from rouse_embedded.stores import Nats
from rouse_testkit.repository_client import until_health


async def test_it_waits_for_nats_serves_and_stops(nats: Nats) -> None:
    nats.stop()
    environment = {**os.environ, "ROUSE_COMM_BROKER_NATS": nats.url}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rouse_comm_broker", env=environment, stdout=PIPE, stderr=PIPE
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 20)
    async with grpc.aio.insecure_channel(line.decode().split()[1]) as channel:
        await until_health(channel, serving=False)
        await asyncio.to_thread(nats.start)
        await until_health(channel, serving=True)
        stub = broker.BrokerServiceStub(channel)
        await stub.CreateJob(broker.CreateJobRequest(job=broker.Job(job_id="job", workers=2)), timeout=10)
        waiting = stub.Receive(broker.ReceiveRequest(job_id="job", rank=0, wait={"seconds": 2}), timeout=10)
        await stub.CheckChannel(broker.CheckChannelRequest(), timeout=10)  # so the other call is there, too
        process.send_signal(signal.SIGTERM)
        assert list((await waiting).messages) == []  # drained, not cut off
    _, log = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0
    assert nats.password not in log.decode()
