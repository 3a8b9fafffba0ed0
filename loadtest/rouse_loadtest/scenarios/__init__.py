"""All scenarios, by name."""

from __future__ import annotations

from collections.abc import Mapping

from rouse_loadtest.scenario import Scenario
from rouse_loadtest.scenarios import (
    asleep,
    balance,
    batching,
    coldstart,
    density,
    faults,
    overhead,
    predict,
    redirect,
    remoting,
    swap,
    torpor_sim,
)

_ALL = (
    asleep,
    balance,
    batching,
    coldstart,
    density,
    faults,
    overhead,
    predict,
    redirect,
    remoting,
    swap,
    torpor_sim,
)
SCENARIOS: Mapping[str, Scenario] = {each.SCENARIO.name: each.SCENARIO for each in _ALL}
