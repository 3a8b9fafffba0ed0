"""Who owns a data folder, and what a killed owner leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rouse_embedded.folders import SHARED_MEMORY, TAG, MeshLocked, claimed, prune_traces, tagged

MIB = 1 << 20


def test_folders_are_private_short_and_gone_afterwards(tmp_path: Path) -> None:
    with claimed(tmp_path / "data", MIB) as folders:
        assert folders.memory.parent == SHARED_MEMORY
        assert len(str(folders.runtime)) < 50
        for folder in (folders.data, folders.memory, folders.runtime, folders.logs, folders.traces):
            assert folder.stat().st_mode & 0o777 == 0o700
        (folders.memory / "segment").write_bytes(b"x")
    assert not folders.memory.exists()
    assert not folders.runtime.exists()
    assert folders.logs.is_dir()


def test_too_little_shared_memory_falls_back_to_the_data_folder(tmp_path: Path) -> None:
    with claimed(tmp_path / "data", 1 << 60) as folders:
        assert (folders.memory_is_shared, folders.memory) == (False, tmp_path / "data" / "memory")
    assert not folders.memory.exists()


def test_a_second_owner_is_refused_with_the_first_one_s_pid(tmp_path: Path) -> None:
    with claimed(tmp_path / "data", MIB) as folders:
        with pytest.raises(MeshLocked, match=f"pid {os.getpid()}"), claimed(tmp_path / "data", MIB):
            pass
        assert folders.memory.is_dir(), "the refused one took nothing away"
    with claimed(tmp_path / "data", MIB):
        pass


def test_two_data_folders_do_not_meet(tmp_path: Path) -> None:
    with claimed(tmp_path / "a", MIB) as a, claimed(tmp_path / "b", MIB) as b:
        assert len({a.key, b.key}) == len({a.memory, b.memory}) == len({a.runtime, b.runtime}) == 2


KILLED_OWNER = f"""
import os, signal, subprocess, sys
from pathlib import Path
from rouse_embedded.folders import claimed
with claimed(Path(sys.argv[1]), 1 << 20) as folders:
    child = subprocess.Popen([sys.executable, "-c", "import signal\\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
        "print('up', flush=True)\\nwhile True: signal.pause()"],
        env={{**os.environ, {TAG!r}: folders.key}}, stdout=subprocess.PIPE)
    child.stdout.readline()
    (folders.memory / "segment").write_bytes(b"x")
    print(child.pid, folders.memory, folders.runtime, flush=True)
    signal.pause()
"""


def test_what_a_killed_owner_left_is_ended_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rouse_embedded.folders.END_TIMEOUT_S", 0.5)
    data = tmp_path / "data"
    owner = subprocess.Popen([sys.executable, "-c", KILLED_OWNER, str(data)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, memory, runtime = owner.stdout.readline().split()
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    orphan = psutil.Process(int(pid))
    with claimed(data, MIB) as folders:
        assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
        assert tagged(folders.key) == []
        assert str(folders.memory) == memory
        assert list(folders.memory.iterdir()) == []
        assert not Path(runtime).exists()


def test_old_traces_are_removed_first(tmp_path: Path) -> None:
    for number in range(10):
        path = tmp_path / f"gateway-{number}.jsonl"
        path.write_bytes(b"x" * 100)
        os.utime(path, (number, number))
    (tmp_path / "notes.txt").write_text("not a trace")

    def kept() -> set[int]:
        return {int(path.stem.split("-")[1]) for path in tmp_path.glob("*.jsonl")}

    prune_traces(tmp_path, max_bytes=10_000, max_files=8)
    assert kept() == set(range(2, 10))
    prune_traces(tmp_path, max_bytes=350, max_files=8)
    assert kept() == {7, 8, 9}
    assert (tmp_path / "notes.txt").exists()
