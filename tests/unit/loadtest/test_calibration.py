"""A profile out of measured requests and a mesh's log: what belongs to which step."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from rouse_loadtest import calibration
from rouse_loadtest.calibration import EVICTED, LEAST, MOST_OTHERS, SWAPPED_IN, Stretch
from rouse_loadtest.fleet import Asked
from rouse_loadtest.playing import Answered
from rouse_simulator import measured

LOG = """\
2026-11-22T04:52:48.826Z INFO    gpu-server       trace=- evicted function=f04 version=f7 device=gpu0 size_mib=32 \
idle_s=0.306 took_ms=15.2 reason=room for function=f39
2026-11-22T04:52:48.855Z INFO    gpu-server       trace=- swapped in function=f39 version=b9 device=gpu0 size_mib=32 \
took_ms=44.0 source=host evicted=f04 reason=for request 497
2026-11-22T04:52:49.100Z INFO    gpu-server       trace=- evicted function=f00 version=95 device=gpu0 size_mib=32 \
idle_s=0.297 took_ms=15.6 reason=room for function=f35
2026-11-22T04:52:48.877Z INFO    f00              trace=- evicted function=f00 took_ms=1.0 reason=a line of a function
2026-11-22T04:52:48.877Z WARNING gpu-server       trace=- swap failed function=f00 took_ms=1.0 reason=no swap
""".splitlines()
SWAPPED = Answered(0, 0.0, 0.060, queue_s=0.002, swap_s=0.040, execute_s=0.012, node_s=0.057, swapped=True, device="g")
RESIDENT = Answered(1, 0.0, 0.012, queue_s=0.001, swap_s=0.0, execute_s=0.008, node_s=0.010, swapped=False, device="g")
ALONE = [Asked(0.06, 0.057, 0.003, 0.04, 0.012), Asked(0.012, 0.01, 0.001, 0.0, 0.008)]


def stretch(*answers: Answered) -> Stretch:
    began, ended = (datetime.fromisoformat(f"2026-11-22T04:52:{second}Z") for second in ("48.800", "49.000"))
    return Stretch(began, ended, answers)


def test_every_millisecond_of_a_request_belongs_to_one_step() -> None:
    machine = calibration.machine("m", 32 << 20, ALONE, [stretch(SWAPPED, RESIDENT)], LOG)
    assert machine.way_ms[0] == pytest.approx((3, 2))
    assert machine.run_ms[0] == pytest.approx((9,))
    assert machine.first_run_ms[0] == pytest.approx((15,))
    assert machine.lease_ms[0] == pytest.approx((1,))
    assert machine.first_lease_ms[0] == pytest.approx((3,))


def test_what_gpu_server_says_counts_where_it_ended_within_a_stretch() -> None:
    (evicted,), (loaded,) = (calibration.logged(step, LOG, [stretch()]) for step in (EVICTED, SWAPPED_IN))
    assert (evicted.ms, loaded.ms) == (15.2, 44.0)
    # They began as long before as they took.
    assert (evicted.began_s, loaded.began_s) == pytest.approx((0.0108, 0.011))
    assert calibration.logged(SWAPPED_IN, LOG, []) == []


def test_costs_are_told_apart_by_what_else_was_under_way() -> None:
    later = replace(RESIDENT, due=0.03, latency_s=0.02, node_s=0.018)
    both = stretch(SWAPPED, later)
    assert [both.under_way(at) for at in (-0.01, 0.0, 0.03, 0.049, 0.05, 0.06)] == [0, 1, 2, 2, 1, 0]
    assert calibration.levels([(0, 1.0), (2, 5.0), (0, 2.0)]) == ((1.0, 2.0, 5.0),), "too few to be told apart"
    busy = [(2, float(number)) for number in range(LEAST)]
    assert calibration.levels([(-1, 1.0), (0, 2.0), *busy]) == (
        (1.0, 2.0), tuple(ms for _, ms in busy), tuple(ms for _, ms in busy),
    )  # fmt: skip
    assert len(calibration.levels([(99, 1.0)] * LEAST)) == MOST_OTHERS + 1


def test_a_profile_is_saved_and_read_again(tmp_path: Path) -> None:
    machine = calibration.machine("two cores", 32 << 20, ALONE, [stretch(SWAPPED, RESIDENT)], LOG)
    measured.save(tmp_path / "machine.json", machine)
    assert measured.load(tmp_path / "machine.json") == machine


def test_a_step_that_was_never_seen_is_an_error() -> None:
    with pytest.raises(ValueError, match="first_run_ms: want at least one"):
        calibration.machine("two cores", 1, ALONE, [stretch(RESIDENT)], LOG)
