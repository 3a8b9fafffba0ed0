"""model-repository and its life as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path

from rouse_embedded.stores import Nats
from rouse_testkit.repository_client import RepositoryClient, sha256, until_health


async def start(nats: Nats, arguments: Sequence[str]) -> tuple[Process, str]:
    """The process and its address, once it serves."""
    environment = {**os.environ, "ROUSE_MODEL_REPOSITORY_NATS": nats.url}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rouse_model_repository", *arguments, env=environment, stdout=PIPE, stderr=PIPE
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 20)
    return process, line.decode().split()[1]


async def end(process: Process) -> str:
    """Stops it as an operator does; its log."""
    process.send_signal(signal.SIGTERM)
    _, log = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0
    return log.decode()


async def test_it_waits_for_nats_serves_and_stops(nats: Nats, tmp_path: Path) -> None:
    nats.stop()
    process, address = await start(nats, ["--spool-dir", str(tmp_path / "spool")])
    client = RepositoryClient(address)
    await until_health(client.channel, serving=False)
    await asyncio.to_thread(nats.start)
    await until_health(client.channel, serving=True)
    await client.put(b"kept")
    await client.close()
    log = await end(process)
    assert "waiting for NATS" in log
    assert nats.password not in log
    process, address = await start(nats, ["--spool-dir", str(tmp_path / "spool")])
    client = RepositoryClient(address)
    await until_health(client.channel, serving=True)
    assert await client.get(sha256(b"kept")) == b"kept"
    await client.close()
    await end(process)


async def test_a_killed_process_leaves_nothing_behind(nats: Nats, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    process, address = await start(nats, ["--spool-dir", str(spool)])
    client = RepositoryClient(address)
    await until_health(client.channel, serving=True)
    data = os.urandom(48 << 20)
    uploading = asyncio.create_task(client.put(data))
    async with asyncio.timeout(20):
        while not list(spool.iterdir()) and not uploading.done():
            await client.list()
    process.kill()
    await process.wait()
    outcome = (await asyncio.gather(uploading, return_exceptions=True))[0]
    await client.close()
    process, address = await start(nats, ["--spool-dir", str(spool)])
    client = RepositoryClient(address)
    await until_health(client.channel, serving=True)
    assert list(spool.iterdir()) == []
    if isinstance(outcome, BaseException):
        assert await client.missing([sha256(data)]) == [sha256(data)]
        assert (await client.list()).stored_bytes == 0
    await client.close()
    await end(process)


async def test_a_bad_setting_ends_the_start_with_a_line(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rouse_model_repository", "--spool-dir", str(tmp_path), "--max-blob-mib", "0", stderr=PIPE
    )
    _, log = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert b"--max-blob-mib=0: want 1 to" in log
