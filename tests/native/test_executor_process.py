"""The executor as a process: started, called, killed. Every process here is a real one."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import rouse_native
from rouse_common.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, RouseError, Unavailable
from rouse_common.link import Links
from rouse_contracts import device
from rouse_native.executor import ExecutorProcess, ExecutorSettings, SessionLimits, State
from rouse_native.session import Session, SessionError

pytestmark = pytest.mark.skipif(not rouse_native.built(), reason="the native core is not built here")

SECONDS = 30.0
BASE = 0x5000_0000_0000
# Connects, then says so and how far it is, one byte a step, for ever.
CLIENT = """
import sys
from pathlib import Path
from rouse_native.session import Session
session = Session(Path(sys.argv[1]), 30.0)
token = 0
while True:
    token += 1
    session.sync(token, 30.0)
    sys.stdout.buffer.write(b".")
    sys.stdout.flush()
"""


@pytest.fixture
def folder(short_folder: Path) -> Path:
    return short_folder


@asynccontextmanager
async def executor(folder: Path, **flags: int | str) -> AsyncIterator[ExecutorProcess]:
    links = Links(64 << 20)
    # Many are killed in a row here: the pauses shall not double up to seconds.
    settings = ExecutorSettings(
        "host:0", folder, {"capacity-mib": 256, "ring-kib": 64, **flags}, backoff_s=0.01, backoff_max_s=0.1
    )
    try:
        async with ExecutorProcess(settings, links).running() as process:
            await process.serving(SECONDS)
            yield process
    finally:
        await links.close()


async def session(process: ExecutorProcess, path: Path) -> Session:
    await process.client.open_session(path.name, path, SECONDS)
    return await asyncio.to_thread(Session, path, SECONDS)


def status(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/status").read_text().splitlines()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def rings(pid: int | str) -> int:
    """Mappings of rings in a process."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:")


def send_noise(one: Session, chance: random.Random) -> str:
    """Sends bytes in the place of messages until the session is lost; how."""
    while True:
        size = 8 * chance.randint(1, 40)
        head = size.to_bytes(4, "little") + chance.choice([1, 3, 5, 7, 13, 99]).to_bytes(2, "little")
        try:
            one.send(head + chance.randbytes(size - len(head)), SECONDS)
            one.receive(0.01)
        except SessionError as error:
            if error.code != "DEADLINE":
                return error.code


async def refusal(call: Awaitable[object]) -> str:
    """The reason that a call is refused with; empty where it is not."""
    try:
        await call
    except RouseError as error:
        return error.reason
    return ""


async def gone(pid: int) -> None:
    """Returns when a process has ended that is no child of ours."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(SECONDS):
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)


async def test_it_serves_and_stops(folder: Path) -> None:
    async with executor(folder) as process:
        described = await process.client.describe(SECONDS)
        assert (described.device, described.pid) == ("host:0", process.pid)
        assert described.memory.capacity_bytes == described.memory.free_bytes == 256 << 20
        one = await session(process, folder / "a")
        await asyncio.to_thread(one.sync, 7, SECONDS)
        described = await process.client.describe(SECONDS)
        assert [(s.session_id, s.connected, s.peer_pid) for s in described.sessions] == [("a", True, os.getpid())]
        assert described.memory.ring_bytes == 2 * 64 << 10
        assert process.pid is not None
        assert {"NoNewPrivs:\t1", "Seccomp:\t2"} <= set(status(process.pid))
    assert process.state is State.STOPPED
    assert os.listdir(folder) == []
    with pytest.raises(SessionError) as lost:
        await asyncio.to_thread(one.sync, 8, SECONDS)
    assert lost.value.code == "PEER_GONE"


async def test_a_model_is_mapped_and_given_back(folder: Path) -> None:
    image = folder / "image"
    image.write_bytes(os.urandom(3 << 20))
    async with executor(folder) as process:
        client = process.client
        await client.map_model("v", "at", base=BASE, size_bytes=3 << 20, image=image, timeout_s=SECONDS)
        described = await client.describe(SECONDS)
        memory = described.memory
        assert [(m.version_id, m.base, m.size_bytes) for m in described.models] == [("v", BASE, 3 << 20)]
        assert memory.mapped_bytes == 4 << 20
        assert memory.free_bytes == memory.capacity_bytes - memory.mapped_bytes
        with pytest.raises(AlreadyExists, match="mapped already"):
            await client.map_model("v", "at", base=BASE, size_bytes=3 << 20, image=image, timeout_s=SECONDS)
        with pytest.raises(FailedPrecondition) as taken:
            await client.map_model("w", "at2", base=BASE, size_bytes=3 << 20, image=image, timeout_s=SECONDS)
        assert taken.value.reason == "RANGE_TAKEN"
        with pytest.raises(InvalidArgument) as bad:
            await client.map_model("w", "at2", base=4096, size_bytes=1, image=image, timeout_s=SECONDS)
        assert bad.value.reason == "BAD_RANGE"
        with pytest.raises(NotFound) as missing:
            await client.map_model(
                "w", "at2", base=BASE + (1 << 30), size_bytes=1, image=folder / "none", timeout_s=SECONDS
            )
        assert missing.value.reason == "IMAGE_NOT_FOUND"
        with pytest.raises(RouseError) as full:
            await client.map_model("w", "at2", base=BASE + (1 << 30), size_bytes=1 << 30, image=None, timeout_s=SECONDS)
        assert full.value.reason == "DEVICE_MEMORY_FULL"
        assert (await client.describe(SECONDS)).memory.mapped_bytes == 4 << 20
        # Its sessions end with it.
        await client.open_session("s", folder / "s", SECONDS, version_id="v")
        one = await asyncio.to_thread(Session, folder / "s", SECONDS)
        await asyncio.to_thread(one.sync, 1, SECONDS)
        assert await client.unmap_model("v", SECONDS) == 4 << 20
        with pytest.raises(SessionError, match="PEER_GONE"):
            await asyncio.to_thread(one.sync, 2, SECONDS)
        memory = (await client.describe(SECONDS)).memory
        assert (memory.mapped_bytes, memory.free_bytes) == (0, memory.capacity_bytes)
        with pytest.raises(NotFound, match="not mapped"):
            await client.open_session("s", folder / "s", SECONDS, version_id="v")


async def test_requests_without_a_tape_or_a_lease_are_refused(folder: Path) -> None:
    async with executor(folder) as process:
        request = device.ExecuteRequest(lease_id="at/1", request_id="r")
        with pytest.raises(FailedPrecondition) as stale:
            await process.client.execute(request, SECONDS)
        assert stale.value.reason == "STALE_LEASE"
        await process.client.map_model("v", "at", base=0, size_bytes=0, image=None, timeout_s=SECONDS)
        with pytest.raises(FailedPrecondition) as none:
            await process.client.execute(request, SECONDS)
        assert none.value.reason == "NO_TAPE"


async def test_what_is_no_message_ends_one_session_only(folder: Path) -> None:
    async with executor(folder) as process:
        good = await session(process, folder / "good")
        chance = random.Random(11)
        for number in range(20):
            bad = await session(process, folder / f"bad{number}")
            assert await asyncio.to_thread(send_noise, bad, chance) == "PEER_GONE"
            await asyncio.to_thread(good.sync, number, SECONDS)
        assert process.incarnation == 1


@pytest.mark.timeout(300)
async def test_clients_killed_at_fifty_moments_leave_nothing(folder: Path) -> None:
    chance = random.Random(1)
    async with executor(folder) as process:
        bystander = await session(process, folder / "bystander")
        await asyncio.to_thread(bystander.sync, 0, SECONDS)
        before = await process.client.describe(SECONDS)
        held, shared = rings(before.pid), set(os.listdir("/dev/shm"))
        for number in range(50):
            name = f"client{number}"
            await process.client.open_session(name, folder / name, SECONDS)
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CLIENT, str(folder / name), stdout=asyncio.subprocess.PIPE
            )
            assert child.stdout is not None
            # From before it has connected to long after.
            await child.stdout.readexactly(chance.choice([0, 0, 1, 2, chance.randint(3, 3000)]))
            child.kill()
            await child.wait()
            # Whether it came to connect or not.
            await process.client.close_session(name, SECONDS)
            await asyncio.to_thread(bystander.sync, number, SECONDS)
        after = await process.client.describe(SECONDS)
        assert process.incarnation == 1
        assert [s.session_id for s in after.sessions] == ["bystander"]
        assert after.open_descriptors == before.open_descriptors
        assert after.memory == before.memory
        assert rings(after.pid) == held
        assert set(os.listdir("/dev/shm")) <= shared


@pytest.mark.timeout(300)
async def test_executors_killed_at_fifty_moments_are_noticed_and_replaced(folder: Path) -> None:
    chance = random.Random(2)
    # Another executor, which must not notice.
    (folder / "other").mkdir()
    async with executor(folder / "other") as other, executor(folder) as process:
        bystander = await session(other, folder / "bystander")
        # Sessions of earlier tests may wait in cycles to be collected: theirs are not counted.
        gc.collect()
        held, open_before = rings("self"), descriptors()
        for number in range(50):
            one = await session(process, folder / f"s{number}")
            wanted, pid, incarnation = chance.choice([0, 1, chance.randint(2, 2000)]), process.pid, process.incarnation
            assert pid is not None

            def work(one: Session = one, wanted: int = wanted, pid: int = pid) -> str:
                for token in range(1 << 62):
                    if token == wanted:
                        os.kill(pid, signal.SIGKILL)
                    try:
                        one.sync(token, SECONDS)
                    except SessionError as error:
                        return error.code
                raise AssertionError("unreachable")

            assert await asyncio.to_thread(work) == "PEER_GONE"
            del one, work
            while process.incarnation == incarnation or process.state is not State.SERVING:
                await asyncio.wait_for(process.changed(), SECONDS)
            await asyncio.to_thread(bystander.sync, number, SECONDS)
        assert other.incarnation == 1
        # One connection of the link and one pipe, each in the place of another.
        assert descriptors() <= open_before
        assert rings("self") == held


async def test_a_call_under_way_fails_with_its_executor(folder: Path) -> None:
    async with executor(folder) as process:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        call = asyncio.create_task(process.client.describe(SECONDS))
        await asyncio.wait([call], timeout=0)
        process.kill()
        with pytest.raises(Unavailable) as lost:
            await call
        assert lost.value.reason in ("LINK_LOST", "NOT_CONNECTED")
        await process.serving(SECONDS)


async def test_it_ends_with_its_parent(folder: Path) -> None:
    program, listen = rouse_native.executor_program(), folder / "link"
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import subprocess, sys, os\n"
        "child = subprocess.Popen(sys.argv[1:] + ['--parent', str(os.getpid())], stdout=subprocess.PIPE)\n"
        "assert child.stdout.readline() == b'ready\\n'\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n",
        str(program), "--listen", str(listen), "--capacity-mib", "64",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    parent.kill()
    await parent.wait()
    await gone(pid)


def test_bad_configuration_is_named(folder: Path) -> None:
    program = str(rouse_native.executor_program())

    def run(*arguments: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [program, *arguments], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return done.returncode, done.stderr.strip()

    code, said = run("--listen", "relative")
    assert (code, said) == (2, "ERROR rouse-executor: --listen is 'relative'; it must be an absolute path")
    code, said = run("--listen", str(folder / "l"), ROUSE_EXECUTOR_THREADS="0")
    assert code == 2
    assert "ROUSE_EXECUTOR_THREADS is '0'; it must be a number from 1 to 1024" in said
    code, said = run("--listen", str(folder / "l"), "--capacity-mib", "1")
    assert code == 3, said


async def test_sessions_are_bounded_and_time_out(folder: Path) -> None:
    async with executor(folder, **{"max-sessions": 2}) as process:
        await process.client.open_session("a", folder / "a", SECONDS)
        await process.client.open_session("b", folder / "b", SECONDS, limits=SessionLimits(connect_s=0.01))
        with pytest.raises(AlreadyExists):
            await process.client.open_session("a", folder / "c", SECONDS)
        # Until the one that nobody connects to has ended.
        async with asyncio.timeout(SECONDS):
            while reason := await refusal(process.client.open_session("c", folder / "c", SECONDS)):
                assert reason == "TOO_MANY_SESSIONS"
        with pytest.raises(InvalidArgument, match="power of two"):
            await process.client.open_session("d", folder / "d", SECONDS, limits=SessionLimits(ring_bytes=100_000))
