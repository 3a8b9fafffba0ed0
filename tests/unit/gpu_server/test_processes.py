"""Seeing that a process has ended."""

from __future__ import annotations

import os
import subprocess

from rouse_gpu_server.adapters.processes import is_gone, start_time


def test_a_process_is_there_until_it_ends_even_before_it_is_reaped() -> None:
    process = subprocess.Popen(["sleep", "600"])
    started = start_time(process.pid)
    assert started is not None
    assert not is_gone(process.pid, started)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(process.pid, started), "what is left of it holds no memory"
    process.wait()
    assert is_gone(process.pid, started)


def test_another_process_of_the_same_id_is_not_the_one_that_was_seen() -> None:
    mine = start_time(os.getpid())
    assert mine is not None
    assert is_gone(os.getpid(), mine - 1)


def test_of_a_process_that_was_never_visible_nothing_is_known() -> None:
    assert not is_gone(2**22 + 1, None)
