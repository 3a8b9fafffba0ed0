"""The scenarios of `make gpu-check`, where there is no GPU: on the stand-in they run whole."""

from __future__ import annotations

import pytest

import rouse_native
from rouse_loadtest.gpu_check import SCENARIOS, scenario
from rouse_testkit.compute import STAND_IN, compute, stand_in_executor
from rouse_testkit.fetching import Unobtainable

pytestmark = pytest.mark.skipif(not rouse_native.built(), reason="the native core is not built here")

# Of each something that it measures there.
FIGURES = {
    "redirect": {"redirected_over_native.llama_64", "synchronous_over_native.bert_tiny", "tape_over_native.llama_tiny"},
    "swap": {"swap_over_warm.resnet152_224", "load_then_run_over_warm.bert_128"},
    "remoting": {"tape_request_overhead_ms", "ring_round_trip_ms"},
}
# What is measured in this process's memory only, and in a GPU's.
ELSEWHERE = ("per_parameter_over_warm", "bandwidth_over_memcpy", "swap_gb_per_s")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_runs_whole_on_the_stand_in(name: str) -> None:
    try:
        compute(STAND_IN)
        stand_in_executor()
    except Unobtainable as error:
        pytest.skip(str(error))
    part = scenario(name, 300.0, STAND_IN)
    # How fast is for `make bench` to say, and the stand-in is no accelerator.
    names = {measure.name for measure in part.measures}
    assert names >= FIGURES[name], part.said
    assert not [name for name in names if name.startswith(ELSEWHERE)]
