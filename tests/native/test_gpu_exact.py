"""The exactness of `make gpu-check`, where there is no GPU: on the stand-in it runs whole, and elsewhere it fails."""

from __future__ import annotations

import pytest

import rouse_native
from rouse_loadtest.gpu_check import Outcome, exactness
from rouse_testkit.compute import STAND_IN, compute
from rouse_testkit.fetching import Unobtainable
from rouse_testkit.tensors import one_thread

pytestmark = pytest.mark.skipif(not rouse_native.built(), reason="the native core is not built here")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_model_is_compared_in_every_dtype() -> None:
    try:
        on = compute(STAND_IN)
    except Unobtainable as error:
        pytest.skip(str(error))
    with one_thread():
        part = exactness(on.device, on.libraries)
    assert (part.outcome, part.ran) == (Outcome.PASSED, 9), part.said


def test_a_device_that_is_not_there_fails() -> None:
    part = exactness("cuda:63")
    assert (part.outcome, part.ran) == (Outcome.FAILED, 0)
