"""A service process: its ready line, its exit codes, and that it ends when it should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rouse_embedded.folders import still_running

SERVICE = """
import asyncio, sys
from rouse_common.config import ConfigError, ServiceConfig
from rouse_common.lifecycle import main

class App:
    def __init__(self, config):
        if "refuse" in sys.argv[0]:
            raise ConfigError("--listen: not there")

    async def run(self, ready, stopping):
        await ready("127.0.0.1:7")
        if "fail" in sys.argv[0]:
            raise RuntimeError("no database")
        await stopping.wait()
        print("drained", flush=True)

sys.exit(main("probe", ServiceConfig, App))
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def run(*argv: str, name: str = "serve", **environ: str) -> subprocess.Popen[str]:
        script = tmp_path / f"{name}.py"
        script.write_text(SERVICE)
        return subprocess.Popen(
            [sys.executable, str(script), *argv],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environ},
        )  # fmt: skip

    return run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_serves_and_stops_in_order(start: Start, number: signal.Signals) -> None:
    process = start()
    assert process.stdout is not None
    assert process.stdout.readline() == "ready 127.0.0.1:7\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "drained\n")
    assert "probe stopped" in err


def test_a_failure_is_one_line_and_code_1(start: Start) -> None:
    process = start(name="fail")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    (said,) = [line for line in err.splitlines() if " ERROR " in line]
    assert "probe ends: RuntimeError: no database" in said


@pytest.mark.parametrize(
    ("argv", "name", "words"),
    [
        (["--lisen=x"], "serve", "unknown flag --lisen=x"),
        (["--metrics-listen=nowhere"], "serve", "metrics_listen=nowhere: want host:port"),
        ([], "refuse", "--listen: not there"),
    ],
)
def test_a_bad_configuration_is_one_line_and_code_2(start: Start, argv: list[str], name: str, words: str) -> None:
    process = start(*argv, name=name)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert err.startswith("rouse-probe: ")
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_metrics_address_that_is_taken_is_named(start: Start) -> None:
    first = start("--metrics-listen=127.0.0.1:0")
    assert first.stdout is not None
    assert first.stdout.readline()
    (taken,) = {c.laddr.port for c in psutil.Process(first.pid).net_connections() if c.status == psutil.CONN_LISTEN}
    second = start(f"--metrics-listen=127.0.0.1:{taken}")
    _, err = second.communicate(timeout=20)
    assert second.returncode == 1
    assert f"cannot serve metrics on 127.0.0.1:{taken}" in err
    first.terminate()
    first.communicate(timeout=20)


def test_it_ends_with_the_parent_that_it_was_told_of(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(SERVICE)
    code = (
        "import os, subprocess, sys, signal\n"
        "child = subprocess.Popen([sys.executable, sys.argv[1]], stdout=subprocess.PIPE, text=True,"
        " env={**os.environ, 'ROUSE_PARENT_PID': str(os.getpid())})\n"
        "child.stdout.readline(); print(child.pid, flush=True); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    service = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    assert still_running([service], 20) == []


def test_it_does_not_start_for_a_parent_that_is_gone(start: Start) -> None:
    process = start(ROUSE_PARENT_PID="0")
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, "")
