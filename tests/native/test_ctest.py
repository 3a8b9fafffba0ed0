"""The native tests: as they are, under the address and undefined-behaviour sanitizers, under the thread sanitizer."""

from __future__ import annotations

import pytest

from rouse_testkit.fetching import Unobtainable
from rouse_testkit.native import build_and_test


@pytest.mark.slow
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("preset", ["tests", "asan", "tsan"])
def test_native_tests_pass(preset: str) -> None:
    try:
        said = build_and_test(preset)
    except Unobtainable as error:
        pytest.skip(str(error))
    assert "100% tests passed" in said, said
