"""Bills: device time and a tenth of the time in host memory, however they are put together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_policy.billing import Settings, billed_ms

USED = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=20)


def test_a_sleeping_function_pays_a_tenth() -> None:
    assert billed_ms(200.0, 1000.0, Settings()) == 300.0
    assert billed_ms(200.0, 1000.0, Settings(host_share=0.0)) == 200.0


@given(USED)
def test_a_bill_is_the_sum_of_its_parts(used: list[tuple[float, float]]) -> None:
    parts = sum(billed_ms(device_ms, host_ms, Settings()) for device_ms, host_ms in used)
    whole = billed_ms(sum(d for d, _ in used), sum(h for _, h in used), Settings())
    assert parts == pytest.approx(whole)
