"""Memory that says whether it was touched."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import rouse_native

pytestmark = pytest.mark.skipif(
    not rouse_native.built() or importlib.util.find_spec("rouse_native.redirect") is None,
    reason="the native core is not built here",
)


def over(memory: Any) -> np.ndarray:
    return np.frombuffer(memory, dtype=np.uint8)


def test_touches_are_noted_and_go_through() -> None:
    from rouse_native._redirect import Watched

    memory = Watched(10_000)
    array = over(memory)
    array[:] = 7
    for _ in range(3):
        memory.watch()
        assert not memory.unwatch()
        memory.watch()
        assert int(array[9_999]) == 7
        assert memory.unwatch()
        memory.watch()
        array[5_000] = 7
        assert memory.unwatch()
    assert int(array.sum()) == 70_000


def test_touches_by_several_threads_at_once_go_through() -> None:
    from rouse_native._redirect import Watched

    memories = [Watched(1 << 20) for _ in range(8)]
    arrays = [over(memory) for memory in memories]
    for memory in memories:
        memory.watch()
    sums: list[int] = []
    threads = [threading.Thread(target=lambda: sums.extend(int(a.sum()) for a in arrays)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sums == [0] * 32
    assert all(memory.unwatch() for memory in memories)


def test_memory_outlives_its_watch_where_an_array_stays() -> None:
    from rouse_native._redirect import Watched

    arrays = []
    for number in range(600):  # more than can be watched at once
        memory = Watched(8)
        array = over(memory)
        array[:] = number % 256
        if number < 200:
            memory.watch()
            memory.unwatch()
            arrays.append(array)
        del memory
    assert [int(array[0]) for array in arrays] == list(range(200))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import faulthandler; faulthandler.enable(); memory.watch(); print('watched')", "SIGSEGV handler of its own"),
        ("memory.watch(); memory.unwatch(); import ctypes; ctypes.string_at(16)", "Segmentation fault"),
    ],
)
def test_other_faults_are_reported_as_ever(code: str, said: str) -> None:
    program = (
        "import faulthandler; faulthandler.enable()\n"
        "import rouse_native.redirect\n"
        "from rouse_native._redirect import Watched\n"
        "memory = Watched(8); memory.watch(); memory.unwatch(); faulthandler.disable() if 'enable' in CODE else None\n"
        "exec(CODE)\n"
    ).replace("CODE", repr(code))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert said in done.stderr
    assert "watched" not in done.stdout
