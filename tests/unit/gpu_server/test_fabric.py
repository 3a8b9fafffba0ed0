"""Copies that share links: who gets how much of them."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Mapping

import pytest

from rouse_gpu_server.backends import CopyCancelled
from rouse_gpu_server.backends.fabric import Fabric, Transfer
from rouse_gpu_server.wiring import Wiring
from rouse_policy.topology import Topology

CHUNK = 4.0
RUN_S = 1000.0


class Time:
    """A clock that says what it is told."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now


def fabric(
    time: Time, switch: float | None, devices: Mapping[str, float], links: Mapping[tuple[str, str], float]
) -> Fabric:
    topology = Topology((("a", "b", "c"), ("d",)), links)
    return Fabric(Wiring(topology, (switch, None), devices), time.monotonic)


def rates(time: Time, transfers: Mapping[str, Transfer], late_s: float = 0.0) -> dict[str, float]:
    """Bytes a second that each copy moves while all of them go on; each wakes `late_s` after its time."""
    moved = dict.fromkeys(transfers, 0.0)
    start = time.now
    due = [(start, name) for name in transfers]
    while due[0][0] < start + RUN_S:
        at, name = heapq.heappop(due)
        time.now = max(time.now, at)
        left_s = transfers[name].take(int(CHUNK))
        moved[name] += CHUNK
        heapq.heappush(due, (time.now + max(0.0, left_s) + late_s, name))
    return {name: size / RUN_S for name, size in moved.items()}


@pytest.mark.parametrize("late_s", [0.0, 0.02])
def test_copies_behind_one_switch_get_equal_shares_of_its_rate(late_s: float) -> None:
    time = Time()
    wires = fabric(time, 12.0, {}, {})
    alone = rates(time, {"a": wires.transfer("host", "a")}, late_s)
    assert alone["a"] == pytest.approx(12.0, rel=0.02)
    shared = rates(time, {name: wires.transfer("host", name) for name in "abc"}, late_s)
    assert all(rate == pytest.approx(4.0, rel=0.02) for rate in shared.values()), shared


def test_what_a_slow_device_cannot_use_its_neighbour_has() -> None:
    time = Time()
    wires = fabric(time, 8.0, {"a": 1.0}, {})
    found = rates(time, {"a": wires.transfer("host", "a"), "b": wires.transfer("disk", "b")})
    assert found["a"] == pytest.approx(1.0, rel=0.02)
    assert found["b"] == pytest.approx(7.0, rel=0.02)


def test_a_direct_link_has_a_rate_of_its_own() -> None:
    time = Time()
    wires = fabric(time, 2.0, {"d": 3.0}, {("a", "d"): 5.0})
    ways = {
        "direct": wires.transfer("d", "a"),
        "host": wires.transfer("host", "b"),
        "other": wires.transfer("host", "d"),
    }
    found = rates(time, ways)
    assert found == pytest.approx({"direct": 5.0, "host": 2.0, "other": 3.0}, rel=0.02)
    # Without one the copy goes up to the host and down again.
    assert rates(time, {"b": wires.transfer("a", "b")})["b"] == pytest.approx(1.0, rel=0.02)


def test_who_paused_does_not_make_up_for_it() -> None:
    time = Time()
    copy = fabric(time, 4.0, {}, {}).transfer("host", "a")
    assert copy.take(4) == 1.0
    time.now += 100.0
    assert copy.take(4) == 1.0


def test_a_copy_that_waits_for_its_link_can_be_cancelled() -> None:
    time = Time()
    copy = fabric(time, 1e-6, {}, {}).transfer("host", "a")
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(CopyCancelled):
        copy.carry(1 << 20, cancelled)


def test_without_a_wiring_nothing_holds_a_copy_up() -> None:
    Fabric(Wiring(), Time().monotonic).transfer("host", "a").carry(1 << 40, threading.Event())
