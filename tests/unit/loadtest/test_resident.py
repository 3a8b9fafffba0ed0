"""What a node keeps in memory, counted from the kernel's own figures."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import psutil
import pytest

from rouse_loadtest.resident import Resident, _files_mb, _rollup, resident, settled


def test_what_a_process_takes_shows() -> None:
    before = _rollup(os.getpid())["Pss"]
    # Pages that nobody has had before: what was freed may be given out again, and counts already.
    with mmap.mmap(-1, 16 << 20) as taken:
        taken.write(os.urandom(1) * len(taken))
        grown = _rollup(os.getpid())["Pss"] - before
        assert grown > len(taken) / 2


def test_files_count_by_the_blocks_that_they_have(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(os.urandom(1 << 20))
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 1 << 30)
    assert 1.0 < _files_mb(tmp_path) < 1.3


def test_without_a_node_s_services_there_is_nothing() -> None:
    me = psutil.Process()
    assert resident(me) == Resident(0.0, 0.0, 0.0, 0)
    assert settled(me, 0) == resident(me)
    with pytest.raises(TimeoutError):
        settled(me, -1, limit_s=0.0)
