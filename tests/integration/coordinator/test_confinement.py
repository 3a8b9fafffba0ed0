"""A hostile function: what it tries on the machine, the mesh and other functions fails, and the others serve on."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rouse_runtime.isolation import landlock
from rouse_testkit.artefacts import Staged
from rouse_testkit.coordinator_node import Node, execute, identity, python

Start = Callable[..., Awaitable[Node]]
SECRET = "s3cret-of-the-mesh"
OTHER_USER = 54_321
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others")
pytestmark = [
    pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock"),
    pytest.mark.timeout(180),
]

# Each probe returns what it got; what raises was refused. Printed as `probe NAME: VERDICT`.
HOSTILE = """
import ctypes, os, pathlib, signal, socket, subprocess, sys, threading

libc = ctypes.CDLL(None, use_errno=True)

def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result

def connect_unix(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(path)

def listen():
    with socket.create_server(("127.0.0.1", 0)):
        pass

def many_files():
    held = []
    try:
        for _ in range(100_000):
            held.append(open("/dev/null"))
    finally:
        count = len(held)
        for file in held:
            file.close()

# In a program of its own: a process with gRPC's threads is slow to fork.
BOMB = '''
import os
reading, writing = os.pipe()
try:
    for _ in range(20_000):
        if os.fork() == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
finally:
    os.close(writing)
'''

def fork_bomb():
    done = subprocess.run([sys.executable, "-I", "-S", "-c", BOMB], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise OSError(done.stderr.strip().splitlines()[-1])

def fill_memory():
    held = []
    for _ in range(64):
        held.append(bytearray(64 << 20))

def fill_disk(folder):
    with open(os.path.join(folder, "big"), "wb") as file:
        for _ in range(1000):
            file.write(bytes(1 << 20))

class Function:
    def load(self, context):
        o = context.options
        artefact = pathlib.Path(__file__).parent
        tmp = os.environ["TMPDIR"]
        other = int(o["other"])
        free = {
            "artefact": lambda: (artefact / "function.py").read_text(),
            "tmp": lambda: pathlib.Path(tmp, "mine").write_text("x"),
            "thread": lambda: threading.Thread(target=int).start(),
            "program": lambda: subprocess.run([sys.executable, "-c", "import numpy"], check=True, timeout=60),
            "own status": lambda: pathlib.Path("/proc/self/status").read_text(),
        }
        hostile = {
            "secret": lambda: pathlib.Path(o["secret"]).read_text(),
            "folder of secrets": lambda: os.listdir(os.path.dirname(o["secret"])),
            "shadow": lambda: pathlib.Path("/etc/shadow").read_text(),
            "runtime folder": lambda: os.listdir(os.path.dirname(os.path.dirname(tmp))),
            "environment of the coordinator": lambda: pathlib.Path(f"/proc/{o['coordinator']}/environ").read_bytes(),
            "environment of another": lambda: pathlib.Path(f"/proc/{other}/environ").read_bytes(),
            "memory of another": lambda: open(f"/proc/{other}/mem", "rb").close(),
            "ptrace": lambda: checked(libc.ptrace(16, other, 0, 0)),
            "process_vm_readv": lambda: checked(libc.process_vm_readv(other, None, 0, None, 0, 0)),
            "signal": lambda: os.kill(other, 0),
            "socket of another": lambda: connect_unix(o["socket"]),
            "port": lambda: socket.create_connection(("127.0.0.1", int(o["port"])), 5),
            "listening": listen,
            "artefact written": lambda: (artefact / "function.py").write_text(""),
            "artefact added to": lambda: (artefact / "new.py").write_text(""),
            "write beside tmp": lambda: pathlib.Path(os.path.dirname(tmp), "x").write_text("x"),
            "write to /tmp": lambda: pathlib.Path("/tmp/rouse-hostile").write_text("x"),
            "write to python": lambda: pathlib.Path(sys.prefix, "x").write_text("x"),
            "namespace": lambda: checked(libc.unshare(0x10000000)),
            "mount": lambda: checked(libc.mount(b"none", b"/proc", b"tmpfs", 0, None)),
            "root": lambda: os.setresuid(0, 0, 0) if os.geteuid() else checked(-1),
            "files": many_files,
            "processes": fork_bomb,
            "memory": fill_memory,
            "disk": lambda: fill_disk(tmp),
        }
        for name, probe in {**free, **hostile}.items():
            try:
                probe()
                verdict = "allowed"
            except BaseException as error:
                verdict = f"refused ({type(error).__name__}: {error})"
            print(f"probe {name}: {verdict}")
        print("probes done")

    def predict(self, inputs):
        return {"y": inputs["x"] * 2}
"""
FREE = ("artefact", "tmp", "thread", "program", "own status")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that another user can be let into."""
    with tempfile.TemporaryDirectory(prefix="rouse-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def port() -> Iterator[int]:
    """Something that listens, as a store does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def give(folder: Path, user: int) -> None:
    for path in [folder, *folder.rglob("*")]:
        shutil.chown(path, user, user)


async def attacked(place: Path, node: Node, port: int, others: Staged, user: int = 0) -> tuple[dict[str, str], str]:
    """Verdicts of every probe of a function that runs beside another one, and what isolation it reported."""
    secret = place / "state" / "password"
    secret.parent.mkdir(mode=0o700)
    secret.write_text(SECRET)
    secret.chmod(0o600)
    await node.coordinator.run_instance("other", others)
    await node.until_state("other", "READY")
    other = node.gpu_server.executors[0]
    staged = python(
        place, "hostile", HOSTILE, secret=str(secret), coordinator=str(node.coordinator.process.pid),
        other=str(other.pid), socket=other.address.removeprefix("unix:"), port=str(port),
    )  # fmt: skip
    staged.version.spec.resources.host_memory_limit_bytes = 512 << 20
    if user:
        give(place, user)
    node.gpu_server.staged[staged.version.version_id] = staged
    await node.coordinator.run_instance("hostile", staged)
    await node.until_state("hostile", "READY")
    await node.coordinator.until_line("probes done")
    verdicts = {}
    for line in node.coordinator.lines:
        name, separator, verdict = line.partition("probe ")[2].partition(": ")
        if separator:
            verdicts[name] = verdict
    addresses = {executor.instance_id: executor.address for executor in node.gpu_server.executors}
    assert await execute(addresses["hostile"], [1, 2]) == [2, 4]
    assert await execute(addresses["other"], [3]) == [3]
    assert psutil.pid_exists(other.pid)
    return verdicts, (await node.coordinator.rows())["hostile"].isolation


def judge(verdicts: dict[str, str]) -> None:
    assert {name: verdicts[name] for name in FREE} == dict.fromkeys(FREE, "allowed")
    got_through = {name for name, verdict in verdicts.items() if not verdict.startswith("refused")} - set(FREE)
    assert not got_through, {name: verdicts[name] for name in got_through}
    assert len(verdicts) > 25


@ROOT
async def test_a_hostile_function_of_a_coordinator_that_is_root(place: Path, start: Start, port: int) -> None:
    others = identity(place)
    node = await start(others, flags=("--isolation", "strict", "--instance-tmp-mib", "64"))
    verdicts, isolation = await attacked(place, node, port, others)
    judge(verdicts)
    for word in (
        "root of its own",
        "user 200",
        "no capabilities",
        "no new privileges",
        "512 processes",
        "landlock",
        "seccomp",
    ):
        assert word in isolation, isolation


@ROOT
async def test_a_hostile_function_of_a_coordinator_that_is_not_root(
    place: Path, run_dir: Path, start: Start, port: int
) -> None:
    others = identity(place)
    give(place, OTHER_USER)
    give(run_dir.parent, OTHER_USER)
    node = await start(others, flags=("--isolation", "strict", "--instance-tmp-mib", "64"), user=OTHER_USER)
    verdicts, isolation = await attacked(place, node, port, others, OTHER_USER)
    judge(verdicts)
    assert f"user, mount and ipc namespaces; root of its own; user {OTHER_USER}" in isolation


async def test_strict_names_what_the_machine_does_not_give(place: Path, start: Start) -> None:
    staged = identity(place)
    node = await start(staged, flags=("--isolation", "strict", "--first-user", "0"))
    await node.coordinator.run_instance("i1", staged)
    reason = await node.until_state("i1", "FAILED")
    assert "isolation = strict, and this machine does not give: a user of its own" in reason


async def test_auto_takes_what_there_is_and_says_what_is_missing(place: Path, start: Start) -> None:
    staged = identity(place)
    node = await start(staged, flags=("--isolation", "auto", "--first-user", "0", "--instance-ports", "none"))
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    assert await execute(node.gpu_server.executors[0].address, [1]) == [1]
    isolation = (await node.coordinator.rows())["i1"].isolation
    assert "seccomp (no network)" in isolation
    if os.geteuid() == 0:
        assert "without a user of its own" in isolation
    assert node.cluster.reports["i1"][-1].isolation == isolation


async def test_off_is_off(place: Path, start: Start) -> None:
    staged = identity(place)
    node = await start(staged, flags=("--isolation", "off"))
    await node.coordinator.run_instance("i1", staged)
    await node.until_state("i1", "READY")
    assert (await node.coordinator.rows())["i1"].isolation == "off"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "ROUSE_INSTANCE_TOKEN"])
async def test_variables_that_decide_how_programs_load_are_refused(place: Path, start: Start, name: str) -> None:
    staged = identity(place)
    staged.version.spec.environment[name] = "x"
    node = await start(staged)
    await node.coordinator.run_instance("i1", staged)
    assert f"environment variable '{name}'" in await node.until_state("i1", "FAILED")
