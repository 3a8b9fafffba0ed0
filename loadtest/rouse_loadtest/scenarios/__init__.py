"""All scenarios, by name."""

from __future__ import annotations

from collections.abc import Mapping

from rouse_loadtest.scenario import Scenario
from rouse_loadtest.scenarios import batching, each, faults, overhead, redirect, swap, torpor_sim

SCENARIOS: Mapping[str, Scenario] = {
    s.name: s
    for s in (
        overhead.SCENARIO,
        batching.SCENARIO,
        faults.SCENARIO,
        redirect.SCENARIO,
        swap.SCENARIO,
        each.SCENARIO,
        torpor_sim.SCENARIO,
    )
}
