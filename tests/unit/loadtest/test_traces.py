"""Arrivals out of the recorded trace: as many as wanted, its own proportions, the same for a seed."""

from __future__ import annotations

import numpy as np
import pytest

from rouse_loadtest import traces


def test_a_stretch_of_the_trace_is_sped_up_to_a_rate() -> None:
    coming = traces.sped_up(20, seconds=30.0, rate=5.0, seed=3)
    assert (len(coming), coming.count) == (150, 20)
    assert coming.times[0] >= 0
    assert 25 < coming.times[-1] < 30
    assert (np.diff(coming.times) >= 0).all()
    again = traces.sped_up(20, seconds=30.0, rate=5.0, seed=3)
    assert (again.times == coming.times).all()
    assert (again.functions == coming.functions).all()
    assert len(set(traces.sped_up(20, seconds=30.0, rate=5.0, seed=4).times) & set(coming.times)) < 5


def test_twice_the_rate_is_more_of_the_same_trace() -> None:
    slow, fast = (traces.sped_up(20, 30.0, rate, seed=3) for rate in (4.0, 8.0))
    assert (fast.functions[: len(slow)] == slow.functions).all()
    # The same order and proportions in time.
    ratio = fast.times[: len(slow)] / slow.times
    assert ratio.std() < 1e-9


def test_more_than_the_windows_have_is_an_error() -> None:
    with pytest.raises(ValueError, match="take longer windows"):
        traces.sped_up(2, seconds=100.0, rate=100.0, seed=1)
