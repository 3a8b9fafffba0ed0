"""The node that decides as a live one: what one request takes, what goes on at once, and what holds in every run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rouse_policy import eviction, heaviness, pool, queueing
from rouse_simulator.arrivals import Arrivals
from rouse_simulator.clock import Clock
from rouse_simulator.measured import Machine, load, save
from rouse_simulator.pooled import PooledNode, Setup, Weighed, simulate
from rouse_simulator.profile import ProfileError
from rouse_simulator.results import Results


def costing(way: float, lease: float, load: float, run: float, first_run: float, evict: float = 5.0) -> Machine:
    """A machine whose steps always take as long, in milliseconds. Two models fit on a device."""
    steps = (way, lease, lease + 1, load, run, first_run, evict)
    return Machine("made up", 10, *(((ms,),) for ms in steps))


MACHINE = costing(way=4, lease=2, load=50, run=10, first_run=15)
LONG = costing(way=0, lease=0, load=50, run=100, first_run=100)
ORDERS = st.sampled_from([queueing.Order.RRC, queueing.Order.FIFO, queueing.Order.DEADLINE])
COMING = st.lists(st.tuples(st.floats(0, 2), st.integers(0, 7)), max_size=60)


def setup(devices: int = 1, machine: Machine = MACHINE, timeout_s: float = 60.0, **queues: object) -> Setup:
    settings = queueing.Settings(**({"max_acquiring": devices + 2} | queues))  # type: ignore[arg-type]
    return Setup(machine, {f"gpu{n}": 25 for n in range(devices)}, 0.2, timeout_s, settings)


def arriving(coming: Sequence[tuple[float, int]], count: int = 8) -> Arrivals:
    ordered = sorted(coming)
    return Arrivals(np.array([t for t, _ in ordered]), np.array([f for _, f in ordered], dtype=np.int32), count)


def latencies_ms(results: Results, function: int) -> list[float]:
    return [s * 1000 for s in results.functions[function].latencies_s]


def test_alone_a_request_takes_the_sum_of_its_measured_steps() -> None:
    results = simulate(setup(), arriving([(0.0, 0), (1.0, 0)]))
    # The load, then way, lease and execution; then the same without the load.
    assert latencies_ms(results, 0) == pytest.approx([4 + 3 + 50 + 15, 4 + 2 + 10], abs=0.01)
    assert results.swaps() == (1, 0)


def test_a_device_loads_the_next_model_while_it_executes() -> None:
    results = simulate(setup(machine=LONG), arriving([(0.0, 0), (0.0, 1)]))
    # The second load begins when the first has ended, and is hidden behind the execution.
    assert latencies_ms(results, 0) == pytest.approx([151], abs=0.01)
    assert latencies_ms(results, 1) == pytest.approx([252], abs=0.01)


def test_a_step_costs_what_it_did_beside_as_many_other_requests() -> None:
    slower = replace(LONG, run_ms=((100.0,), (150.0,), (300.0,)))
    # One alone; of two at once each finds the other under way; the last of four still finds three.
    for together, costs in ((1, [100]), (2, [150, 150]), (4, [300, 300, 300, 300])):
        coming = arriving([(0.0, number) for number in range(together)])
        results = simulate(setup(4, slower), coming, warm=[0, 1, 2, 3])
        assert [latencies_ms(results, number)[0] for number in range(together)] == pytest.approx(costs, abs=0.01)


def test_two_devices_execute_at_once_and_one_does_not() -> None:
    coming = arriving([(0.0, 0), (0.0, 1)])
    one, two = (simulate(setup(devices, LONG), coming, warm=[0, 1]) for devices in (1, 2))
    assert sorted(latencies_ms(one, 0) + latencies_ms(one, 1)) == pytest.approx([100, 200], abs=0.01)
    assert sorted(latencies_ms(two, 0) + latencies_ms(two, 1)) == pytest.approx([100, 100], abs=0.01)


def test_what_was_called_last_is_on_the_device_at_first() -> None:
    results = simulate(setup(), arriving([(0.0, 6), (0.5, 7), (1.0, 5)]), warm=list(range(8)))
    assert [len(latencies_ms(results, f)) for f in (5, 6, 7)] == [1, 1, 1]
    assert latencies_ms(results, 6) == latencies_ms(results, 7) == pytest.approx([16], abs=0.01)
    assert results.swaps() == (1, 0)
    assert sum(device.evictions for device in results.devices) == 1


def test_clients_that_give_up_are_not_answered_and_hold_nobody_up() -> None:
    long = costing(way=0, lease=0, load=0, run=900, first_run=900)
    coming = arriving([(0.0, 0), *((0.01, 1) for _ in range(5)), (3.0, 0)])
    results = simulate(setup(machine=long, timeout_s=1.0), coming, warm=[0, 1])
    # The first executes; of the five the next one begins when it has ended, too late for its client.
    assert latencies_ms(results, 0) == pytest.approx([900, 900], abs=0.01)
    assert latencies_ms(results, 1) == []
    assert results.arrived() - results.answered() == 5


@settings(max_examples=40, deadline=None)
@given(COMING, st.integers(1, 3), ORDERS, st.integers(0, 3))
def test_every_request_ends_once_and_memory_is_never_overcommitted(
    coming: list[tuple[float, int]], devices: int, order: queueing.Order, seed: int
) -> None:
    machine = Machine(
        "m", 10, ((4, 1), (8,)), ((2, 1),), ((3,),), ((50, 20),), ((10, 30), (20,)), ((15, 8),), ((5, 30),)
    )
    made = replace(setup(devices, machine, timeout_s=600.0, order=order), seed=seed)
    clock = Clock()
    node = PooledNode(made, clock, 8)
    for tenth in range(1, 40):
        clock.at(tenth / 10, node.check)
    arrivals = arriving(coming)
    clock.run(arrivals, node.arrive, 900.0)
    node.check()
    asked = [sum(f == number for _, f in coming) for number in range(8)]
    assert [len(function.result.latencies_s) for function in node.functions] == asked
    again = simulate(made, arrivals)
    assert [list(f.latencies_s) for f in again.functions] == [list(f.result.latencies_s) for f in node.functions]


def test_policies_are_those_it_is_given() -> None:
    """A hot model is spared for its minimum residency, as gpu-server's setting says."""
    coming = arriving([*((0.05 * n, 0) for n in range(12)), *((0.05 * n, 1) for n in range(12)), (0.3, 2), (0.5, 3)])
    short, long = (
        Setup(
            MACHINE, {"gpu0": 25}, 0.2, 60.0, queueing.Settings(max_acquiring=3),
            pool.Settings(eviction=eviction.Settings(min_residency_s=seconds)),
        )
        for seconds in (0.0, 30.0)
    )  # fmt: skip
    assert simulate(short, coming).swaps() != simulate(long, coming).swaps()


def test_what_swaps_slow_down_is_known_as_heavy_and_stays_so_for_the_next_run() -> None:
    weighed = Weighed()
    coming = arriving([(0.0, 0), (0.5, 0), (1.0, 1)])
    simulate(setup(), coming, weighed=weighed)
    # 65 ms swapped over 10 ms resident; the second one was never called again.
    known = weighed["f00000", "gpu0"]
    assert (known.resident_s, known.swapped_s) == pytest.approx((0.010, 0.065))
    assert heaviness.decide(known, None, heaviness.Settings(), 0.0)[0].heavy
    assert weighed["f00001", "gpu0"].resident_s is None
    node = PooledNode(setup(), Clock(), 8, weighed)
    assert [node._heavy(f"f0000{n}", "gpu0") for n in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [("weights_bytes", 0, "weights_bytes"), ("run_ms", [[1.0], [-1.0]], "run_ms"), ("evict_ms", [[]], "evict_ms")],
)
def test_a_profile_that_cannot_be_is_refused(tmp_path: Path, field: str, value: object, named: str) -> None:
    path = tmp_path / "machine.json"
    save(path, MACHINE)
    assert load(path) == MACHINE
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(ProfileError, match=named):
        load(path)
    path.write_text("{}")
    with pytest.raises(ProfileError, match="KeyError"):
        load(path)
