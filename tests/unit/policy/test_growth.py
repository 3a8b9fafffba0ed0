"""Who leaves a device whose models have grown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rouse_policy.growth import Decision, State, decide
from rouse_policy.scheduling import Model, Phase, Resident, Settings, Snapshot
from rouse_testkit.pools import NOW, device, resting, snapshot


def decided(view: Snapshot) -> Decision:
    return decide(view, State(), Settings(), NOW)[0]


def leaving(view: Snapshot) -> list[tuple[str, str]]:
    return [(leave.device, leave.version) for leave in decided(view).leaves]


def on(name: str, phase: Phase, used: float = 0.0) -> Resident:
    return Resident(name, "d0", phase, last_used_at=used)


def test_nobody_leaves_where_all_fit() -> None:
    decision = decided(snapshot([device()], [], [resting("a"), resting("b")]))
    assert decision == Decision((), "")


def test_the_least_recently_used_leaves_and_no_more_than_needed() -> None:
    residents = [resting("a", last_used_at=3.0), resting("b", last_used_at=1.0), resting("c", last_used_at=2.0)]
    view = snapshot([device()], [], residents, a=Model("a", 70, 0), b=Model("b", 20, 0), c=Model("c", 20, 0))
    assert leaving(view) == [("d0", "b")]
    assert leaving(replace(view, models={**view.models, "a": Model("a", 90, 0)})) == [("d0", "b"), ("d0", "c")]


def test_working_memory_counts() -> None:
    view = snapshot(
        [device()], [], [resting("a", last_used_at=2.0), resting("b", last_used_at=1.0)], a=Model("a", 50, 20)
    )
    assert leaving(view) == [("d0", "b")]


@pytest.mark.parametrize("phase", [Phase.EXECUTING, Phase.LOADING])
def test_what_executes_or_loads_stays_and_the_other_one_leaves(phase: Phase) -> None:
    view = snapshot([device()], [], [on("a", phase), on("b", Phase.RESTING, used=NOW)], b=Model("b", 70, 0))
    assert leaving(view) == [("d0", "b")]
    both = snapshot([device()], [], [on("a", phase), on("b", Phase.EXECUTING)], b=Model("b", 70, 0))
    assert leaving(both) == []
    assert decided(both).reason.startswith("d0: ")


def test_what_leaves_already_is_counted_as_gone() -> None:
    view = snapshot([device()], [], [on("a", Phase.LEAVING), on("b", Phase.RESTING)], b=Model("b", 70, 0))
    assert leaving(view) == []


def test_a_pinned_model_stays() -> None:
    view = snapshot(
        [device()], [], [resting("a", last_used_at=1.0), resting("b", last_used_at=2.0)],
        a=Model("a", 40, 0, pinned=True), b=Model("b", 70, 0),
    )  # fmt: skip
    assert leaving(view) == [("d0", "b")]
