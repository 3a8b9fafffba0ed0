"""What holds in every run: requests end once, memory adds up, seeds reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rouse_simulator import arrivals, profile
from rouse_simulator.arrivals import Arrivals
from rouse_simulator.results import Results
from rouse_simulator.simulation import Setup, Simulation, is_heavy, round_robin, simulate
from rouse_simulator.variants import FULL, KEEP_ALIVE, NATIVE, VARIANTS, Binding, Variant

TORPOR = profile.torpor()
WAY_S = TORPOR.node.way_s
# Tight memory, so that everything is swapped all the time.
TIGHT = profile.Profile(
    "tight",
    TORPOR.models,
    replace(TORPOR.node, device_bytes=4_000_000_000),
)
LATE = [v for v in VARIANTS.values() if v.binding is Binding.LATE]
COMING = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 15)), max_size=60)


def arriving(coming: Sequence[tuple[float, int]], count: int = 16) -> Arrivals:
    ordered = sorted(coming)
    return Arrivals(np.array([t for t, _ in ordered]), np.array([f for _, f in ordered], dtype=np.int32), count)


def outcome(results: Results) -> list[list[float]]:
    return [list(f.latencies_s) for f in results.functions]


@settings(max_examples=30, deadline=None)
@given(COMING, st.sampled_from(LATE))
def test_every_request_ends_once_and_memory_adds_up(coming: list[tuple[float, int]], variant: Variant) -> None:
    simulation = Simulation(Setup(TIGHT, variant, round_robin(TIGHT, 16), 3.0, drain_s=600.0))
    for tenth in range(1, 10):
        simulation.clock.at(tenth / 3, simulation.nodes[0].check)
    results = simulation.run(arriving(coming))
    simulation.nodes[0].check()
    assert results.answered() == results.arrived() == len(coming)
    asked = [0] * 16
    for _, function in coming:
        asked[function] += 1
    assert [len(f.latencies_s) for f in results.functions] == asked


@settings(max_examples=20, deadline=None)
@given(COMING, st.sampled_from(list(VARIANTS.values())), st.integers(0, 5))
def test_a_run_is_reproduced_from_its_setup(coming: list[tuple[float, int]], variant: Variant, seed: int) -> None:
    setup = Setup(TIGHT, variant, round_robin(TIGHT, 16), 3.0, nodes=2, seed=seed)
    assert outcome(simulate(setup, arriving(coming))) == outcome(simulate(setup, arriving(coming)))


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda v: v.name)
def test_nobody_is_answered_faster_than_its_execution(variant: Variant) -> None:
    rates = arrivals.uniform_rates(40, 5, 30, seed=1)
    results = simulate(
        Setup(TORPOR, variant, round_robin(TORPOR, 40), 60.0), arrivals.poisson(rates, 60.0, seed=2)
    )  # fmt: skip
    for function in results.functions:
        model = TORPOR.model(function.model)
        least = model.resident_s if variant.remoting else model.native_s
        assert all(latency >= WAY_S + least - 1e-6 for latency in function.latencies_s)
    assert 0 < results.utilisation() < 1


@pytest.mark.parametrize("name", [model.name for model in TORPOR.models])
def test_alone_a_swapped_request_takes_what_the_paper_measured(name: str) -> None:
    model = TORPOR.model(name)
    small = profile.Profile("small", (model,), replace(TORPOR.node, device_bytes=2_500_000_000).alone("gpu0"))
    # Each function evicts the other.
    tight = profile.Profile(
        "one-fits", (model,), replace(small.node, device_bytes=model.resident_bytes + 1_000_000_001)
    )
    coming = [(float(n), n % 2) for n in range(1, 20)]
    results = simulate(Setup(tight, FULL, [model, model], 20.0), arriving(coming, 2))
    latencies = [latency for f in results.functions for latency in f.latencies_s]
    assert [one - WAY_S for one in latencies] == pytest.approx([model.swap_host_s] * len(latencies), rel=0.02)


def backlog(late: bool, count: int, *, evicting: bool) -> list[float]:
    """Latencies of requests that arrive together at one device, 8 ms there and back from the router; ascending."""
    model = TORPOR.model("ResNet-152")
    node = replace(TORPOR.node.alone("gpu0"), way_s=0.008)
    functions = 1
    if evicting:
        functions, node = 2, replace(node, device_bytes=model.resident_bytes + node.runtime_bytes + 1)
    one = profile.Profile("one", (model,), node)
    coming = [(1.0 + n * 1e-6, n % functions) for n in range(count)]
    variant = VARIANTS["fifo" if late else "non_swap"]
    results = simulate(Setup(one, variant, [model] * functions, 2.0, drain_s=60.0), arriving(coming, functions))
    return sorted(latency for f in results.functions for latency in f.latencies_s)


@pytest.mark.parametrize("late", [True, False])
def test_a_device_gets_a_request_when_the_answer_before_is_back(late: bool) -> None:
    model = TORPOR.model("ResNet-152")
    cycle = 0.008 + model.resident_s
    assert backlog(late, 5, evicting=False) == pytest.approx([cycle * n for n in range(1, 6)], rel=1e-3)


def test_weights_are_on_their_way_while_the_answer_before_is() -> None:
    model = TORPOR.model("ResNet-152")
    first, *others = backlog(True, 6, evicting=True)
    swapped = 0.004 + model.swap_host_s
    assert others == pytest.approx([first + swapped * n for n in range(1, 6)], rel=0.02)


def test_bert_is_heavy_and_no_other() -> None:
    assert [model.name for model in TORPOR.models if is_heavy(model)] == ["Bert-qa"]


def test_native_executes_as_many_as_fit() -> None:
    models = round_robin(TORPOR, 160)
    results = simulate(
        Setup(TORPOR, NATIVE, models, 60.0), arrivals.poisson([30.0] * 160, 60.0, seed=1)
    )  # fmt: skip
    need = [m.resident_bytes + TORPOR.node.runtime_bytes for m in models]
    assert results.executed() * min(need) <= 4 * TORPOR.node.device_bytes
    assert results.compliant() <= results.executed() < 160


def test_native_has_no_more_places_than_the_authors_scripts() -> None:
    resnet = TORPOR.model("ResNet-152")
    results = simulate(Setup(TORPOR, NATIVE, [resnet] * 160, 60.0), arrivals.poisson([30.0] * 160, 60.0, seed=1))
    assert results.executed() == 4 * TORPOR.node.native_places == 72


def test_busy_functions_load_all_devices_alike() -> None:
    resnet = TORPOR.model("ResNet-152")
    coming = arrivals.paced([[200.0] * 2] * 40, seed=3)
    results = simulate(Setup(TORPOR, FULL, [resnet] * 40, 120.0), coming)
    busy = [device.busy_s for device in results.devices]
    assert min(busy) > 0.9 * max(busy)


def test_a_known_lifespan_ends_a_function_that_rests_longer() -> None:
    resnet = TORPOR.model("ResNet-152")
    node = replace(TORPOR.node.alone("gpu0"), native_places=1)
    one = profile.Profile("one-place", (resnet,), node)
    # Asked again within its lifespan the function still has the place; the other gets it once the lifespan is over.
    coming = [(0.0, 0), (3.0, 0), (4.0, 1), (9.0, 0)]
    setup = Setup(one, KEEP_ALIVE, [resnet] * 2, 60.0, lifespans_s=[5.0, 5.0])
    first, second = simulate(setup, arriving(coming, 2)).functions
    takes = WAY_S + resnet.native_s
    ends = 3.0 + takes + 5.0
    assert list(second.latencies_s) == pytest.approx([ends + resnet.cold_start_s + takes - 4.0], rel=1e-5)
    assert list(first.latencies_s)[:2] == pytest.approx([takes] * 2)
    assert first.latencies_s[2] > resnet.cold_start_s


def test_a_profile_names_the_file_and_the_field(tmp_path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"name": "bad", "deadline_ms": {}, "models": [{"weights_bytes": 1}]}')
    with pytest.raises(profile.ProfileError, match=r"bad\.json.*native_ms"):
        profile.load(bad)
