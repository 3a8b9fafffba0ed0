"""Fixtures of tests with real executors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def rouse(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device, with an executor of its own for the tests of a file, on what ROUSE_TEST_COMPUTE or the test says."""
    pytest.importorskip("rouse_native._redirect", reason="the native core is not built")
    from rouse_native import redirect
    from rouse_testkit.compute import chosen, compute
    from rouse_testkit.fetching import Unobtainable
    from rouse_testkit.tensors import one_thread

    try:
        on = compute(getattr(request, "param", None) or chosen())
    except Unobtainable as error:
        pytest.skip(str(error))
    with one_thread(), redirect.spawn_local(device=on.device, libraries=on.libraries):
        yield "rouse"


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for sockets, whose paths have 108 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="rouse-") as name:
        yield Path(name)
