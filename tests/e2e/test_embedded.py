"""`rouse up` as a user runs it: its summary, its lock, its restarts, its ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import rouse
from rouse_embedded.folders import leftovers, mesh_key, still_running, tagged
from rouse_embedded.stores.base import free_port

pytestmark = pytest.mark.timeout(300)
LONG_S = 120


class Up:
    """One `python -m rouse_embedded up`."""

    def __init__(self, data: Path, *flags: str) -> None:
        self.data = data
        command = [sys.executable, "-m", "rouse_embedded", "up", "--data-dir", str(data), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said: list[str] = []

    def until(self, words: str) -> str:
        """The next line that says so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if words in line:
                return line
        raise AssertionError(f"it ended with {self.process.wait()} without saying '{words}':\n{''.join(self.said)}")

    def ready(self) -> Up:
        self.until("the mesh is ready")
        self.until("next")
        return self

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=LONG_S)
        self.said.append(rest)
        return self.process.returncode

    @property
    def state(self) -> dict[str, object]:
        state: dict[str, object] = json.loads((self.data / "mesh.json").read_text())
        return state

    def pids(self) -> dict[str, int]:
        processes = self.state["processes"]
        assert isinstance(processes, list)
        return {row["name"]: row["pid"] for row in processes}


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    yield folder
    key = mesh_key(folder)
    assert leftovers(folder, key) == [], "it left something in shared memory or among the sockets"
    assert tagged(key) == []


def test_a_mesh_says_where_it_is_and_stops_in_order(data: Path) -> None:
    port = free_port()
    up = Up(data, "--listen", f"127.0.0.1:{port}", "--nodes", "2", "--device", "host:a=96MiB", "--metrics").ready()
    said = "".join(up.said)
    assert f"gateway  127.0.0.1:{port}" in said
    assert "2, each with host:a 96 MiB" in said
    assert (data / "mesh.json").stat().st_mode & 0o777 == 0o600
    assert up.state["gateway_address"] == f"127.0.0.1:{port}"
    with rouse.Client(f"127.0.0.1:{port}") as client:
        status = client.status()
        assert {node.node: [d.capacity_bytes for d in node.devices] for node in status.nodes} == {
            "node0": [96 << 20],
            "node1": [96 << 20],
        }
        assert {service.state for service in status.services} == {"SERVING"}
        assert len(status.services) == 5 + 2 * 3
    passwords = [path.read_text() for path in data.glob("*/password")]
    assert len(passwords) == 3
    log = (data / "logs" / "rouse.log").read_text()
    for password in passwords:
        assert password not in (data / "mesh.json").read_text() + said + log
    for pid in up.pids().values():
        assert not any(password in " ".join(psutil.Process(pid).cmdline()) for password in passwords)
    pids = up.pids()
    assert up.end(signal.SIGINT) == 0
    assert not any(psutil.pid_exists(pid) for pid in pids.values())
    assert not (data / "mesh.json").exists()
    assert "Traceback" not in "".join(up.said)


def test_a_second_mesh_on_the_same_folder_is_refused(data: Path) -> None:
    first = Up(data, "--listen", "127.0.0.1:0").ready()
    second = Up(data, "--listen", "127.0.0.1:0")
    line = second.until("already")
    assert f"pid {first.process.pid}" in line
    assert second.process.wait(LONG_S) == 3
    assert first.end() == 0


def test_a_taken_address_is_refused_in_one_line(data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        up = Up(data, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        up.until("is another process using it?")
        assert up.process.wait(LONG_S) == 1
    assert len(up.said) == 1


def test_killed_processes_come_back_at_their_addresses(data: Path) -> None:
    up = Up(data, "--listen", "127.0.0.1:0").ready()
    before = up.state
    pids = up.pids()
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + LONG_S
    with rouse.Client(str(before["gateway_address"])) as client:
        while True:
            try:
                status = client.status()
            except rouse.Unavailable:
                status = None
            if status and {s.state for s in status.services} == {"SERVING"} and status.nodes[0].state == "READY":
                break
            assert time.monotonic() < deadline, "the mesh is not whole again"
    after = up.pids()
    assert set(after) == set(pids)
    assert not set(after.values()) & set(pids.values())
    assert up.end() == 0
    assert "".join(up.said).count("ended by signal 9") >= len(pids)


def test_nothing_outlives_a_killed_supervisor_and_the_next_one_starts(data: Path) -> None:
    up = Up(data, "--listen", "127.0.0.1:0").ready()
    processes = [psutil.Process(pid) for pid in up.pids().values()]
    assert up.end(signal.SIGKILL) == -signal.SIGKILL
    assert still_running(processes, 30) == []
    assert (data / "mesh.json").exists()
    up = Up(data, "--listen", "127.0.0.1:0").ready()
    assert up.end() == 0


def test_an_interrupt_during_the_start_ends_it(data: Path) -> None:
    up = Up(data, "--listen", "127.0.0.1:0")
    up.until("waiting for")
    assert up.end(signal.SIGINT) == 130
    assert not (data / "mesh.json").exists()
