"""What requests take with their swap and without, and what follows from it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from rouse_gpu_server.logic.describe import describe
from rouse_gpu_server.logic.leasing import Call, Granted
from rouse_gpu_server.wiring import Wiring
from rouse_policy.topology import Topology
from rouse_testkit.gpu import make_model

if TYPE_CHECKING:
    from conftest import Bench

PAGE = 4096


async def serve(bench: Bench, name: str, pages: int) -> None:
    bench.make(make_model(name, [pages * PAGE]))
    bench.start_instance(f"{name}-v1")
    bench.sync()
    await bench.quiesce()


async def acquire(bench: Bench, name: str) -> Granted:
    return await bench.leasing.acquire(Call(f"{name}-v1", f"r-{name}", "router", "1"), 100.0)


async def use(bench: Bench, name: str, device_ms: float, requests: int = 1, abandoned: bool = False) -> None:
    # Seldom enough that nothing stays for being hot.
    bench.pass_time(1.0)
    granted = await acquire(bench, name)
    bench.leasing.release(granted.lease.lease_id, device_ms, abandoned, requests)
    await bench.quiesce()


def moving(bench: Bench, seconds: float) -> None:
    """From now on every copy takes so long."""
    for device in bench.pool.devices.values():
        device.backend.copying = lambda: bench.clock.advance(seconds)


def weight(bench: Bench, name: str) -> tuple[bool, str]:
    rows = describe(bench.pool, "n", lambda _: 0, host_used=0, host_capacity=0, disk_used=0).residency
    (row,) = [row for row in rows if row.version_id == f"{name}-v1"]
    return row.heavy, row.heaviness


async def test_a_model_is_heavy_whose_requests_a_swap_slows_down(
    make_bench: type[Bench], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with make_bench({"d0": 10}) as bench:
        for name in ("heavy", "light"):
            await serve(bench, name, 6)
        moving(bench, 0.1)
        await use(bench, "heavy", 43.0)
        assert weight(bench, "heavy") == (False, "d0: light: not measured both swapped and resident yet")
        await use(bench, "heavy", 43.0)
        why = "heavy: 143 ms swapped over 43 ms resident is 3.33, 2 is heavy"
        assert weight(bench, "heavy") == (True, f"d0: {why}")
        # Three requests of 200 ms in one lease: one with its swap, two without.
        await use(bench, "light", 600.0, requests=3)
        assert weight(bench, "light") == (False, "d0: light: 300 ms swapped over 200 ms resident is 1.50, 2 is heavy")
        # It is in host memory by now, and is what it was.
        assert weight(bench, "heavy") == (True, f"d0: {why}")
        assert bench.pool.snapshot().models["light-v1"].heavy_on == ()
        await use(bench, "heavy", 43.0)
        assert bench.pool.snapshot().models["heavy-v1"].heavy_on == ("d0",)
        assert [r.getMessage() for r in caplog.records if r.name.endswith("weighing")] == [
            f"weighed function=heavy device=d0 reason={why}"
        ]


async def test_copies_that_share_a_link_and_requests_that_were_given_up_say_nothing(make_bench: type[Bench]) -> None:
    behind_one_switch = Wiring(Topology((("d0", "d1"),)), (None,))
    async with make_bench({"d0": 20, "d1": 20}, wiring=behind_one_switch) as bench:
        for name in ("a", "b", "c"):
            await serve(bench, name, 6)
        moving(bench, 0.1)
        await use(bench, "a", 10.0, abandoned=True)
        assert weight(bench, "a") == (False, "")
        both = await asyncio.gather(acquire(bench, "b"), acquire(bench, "c"))
        assert {granted.lease.device_name for granted in both} == {"d0", "d1"}
        for granted in both:
            assert granted.lease.first
            bench.leasing.release(granted.lease.lease_id, 10.0, False)
            measured = granted.lease.model.measured[granted.lease.device_name]
            assert (measured.swapped_s, measured.resident_s) == (None, None)
