"""The folders that gpu-server owns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rouse_common.config import ConfigError
from rouse_gpu_server.adapters import memory_dir


def test_the_filesystem_of_a_folder_is_that_of_the_longest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    spaced = str(tmp_path / "a b").replace(" ", "\\040")
    mounts.write_text(f"root / ext4 rw 0 0\nshm {tmp_path} tmpfs rw 0 0\nd {spaced} xfs rw 0 0\n")
    monkeypatch.setattr(memory_dir, "MOUNTS", mounts)
    assert memory_dir.filesystem(tmp_path / "deep") == "tmpfs"
    assert memory_dir.filesystem(tmp_path / "a b") == "xfs"
    assert memory_dir.filesystem(Path("/")) == "ext4"


def test_room_counts_what_is_ours_already_and_names_what_to_lower() -> None:
    folder = Path("/dev/shm")
    status = os.statvfs(folder)
    there = status.f_bavail * status.f_frsize
    half = there // 2
    memory_dir.check_room(folder, {"a": half // 2}, half // 2, 0)
    with pytest.raises(ConfigError, match=r"a \d+ MiB \+ b \d+ MiB.*lower --device or --host-memory by \d+ MiB"):
        memory_dir.check_room(folder, {"a": half * 2, "b": half}, half, 0)
    memory_dir.check_room(folder, {"a": half * 2, "b": half}, half, half * 3)


def test_a_folder_has_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_dir, "LOCK_WAIT_S", 0.0)
    handle = memory_dir.lock(tmp_path / "m", "--memory-dir")
    with pytest.raises(ConfigError, match=r"--memory-dir=.*another gpu-server"):
        memory_dir.lock(tmp_path / "m", "--memory-dir")
    os.close(handle)
    os.close(memory_dir.lock(tmp_path / "m", "--memory-dir"))
