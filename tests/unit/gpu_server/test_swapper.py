"""Loads, evictions and leases step by step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from rouse_common.errors import ResourceExhausted, RouseError, Unavailable
from rouse_gpu_server.logic.describe import describe
from rouse_gpu_server.logic.leasing import Call, Granted
from rouse_gpu_server.state.residency import Tier
from rouse_gpu_server.wiring import Wiring
from rouse_policy import interference
from rouse_policy.scheduling import Binding
from rouse_policy.topology import Topology
from rouse_testkit.gpu import make_model

if TYPE_CHECKING:
    from conftest import Bench

PAGE = 4096


async def serve(bench: Bench, name: str, pages: int, instances: int = 1, working: int = 0) -> None:
    """Brings a model with instances to host memory."""
    bench.make(make_model(name, [pages * PAGE], working_bytes=working * PAGE))
    for _ in range(instances):
        bench.start_instance(f"{name}-v1")
    bench.sync()
    await bench.quiesce()


async def acquire(bench: Bench, name: str) -> Granted:
    async with asyncio.timeout(10):
        granted = await bench.leasing.acquire(Call(f"{name}-v1", f"r-{name}", "router", "1"), 100.0)
    bench.check_lease(granted.lease.lease_id, granted.lease.executor.instance_id)
    return granted


async def use(bench: Bench, name: str) -> Granted:
    granted = await acquire(bench, name)
    bench.leasing.release(granted.lease.lease_id, 1.0, False)
    return granted


def memory(bench: Bench) -> dict[str, tuple[int, int, int]]:
    bench.check_memory()
    return {
        d.name: (d.ledger.mapped_bytes, d.ledger.reserved_bytes, d.backend.used_bytes())
        for d in bench.pool.devices.values()
    }


@pytest.mark.parametrize("step", ["allocate", "copy", "copied"])
async def test_a_load_that_fails_at_any_step_leaves_the_device_as_it_was(make_bench: type[Bench], step: str) -> None:
    async with make_bench({"d0": 10}) as bench:
        await serve(bench, "other", 3)
        await serve(bench, "a", 4)
        await use(bench, "other")
        before = memory(bench)
        bench.neighbours.fail.add(step)
        with pytest.raises(RouseError, match=f"{step} fails"):
            await acquire(bench, "a")
        await bench.quiesce()
        assert memory(bench) == before
        assert not bench.pool.residents_of("a-v1")
        assert bench.pool.models["a-v1"].artefact.pins == 0
        await use(bench, "a")


async def test_memory_that_could_not_be_attached_is_used_by_the_next_executor(make_bench: type[Bench]) -> None:
    async with make_bench({"d0": 10}) as bench:
        await serve(bench, "a", 4, instances=2)
        bench.neighbours.fail.add("attached")
        granted = await use(bench, "a")
        assert granted.swapped_in
        assert bench.pool.devices["d0"].swap_ins == 1


async def test_dropping_a_version_stops_its_load_half_way(make_bench: type[Bench]) -> None:
    async with make_bench({"d0": 10}) as bench:
        await serve(bench, "a", 4)
        before = memory(bench)
        asking = asyncio.create_task(acquire(bench, "a"))
        await bench.wakeup.changed()
        for _ in range(3):
            await asyncio.sleep(0)
        assert bench.pool.residents_of("a-v1")[0].state is Tier.SWAPPING_IN
        await bench.membership.drop_version("a-v1", "")
        with pytest.raises(Unavailable, match="no instance"):
            await asking
        assert memory(bench) == before
        assert "a-v1" not in bench.pool.models


async def test_an_executor_moves_to_the_device_that_is_free_and_the_copy_left_behind_goes_first(
    make_bench: type[Bench],
) -> None:
    async with make_bench({"d0": 10, "d1": 10}) as bench:
        for name in "abcd":
            await serve(bench, name, 4)
        # Loads go to the device that has rested longest.
        for name, device in (("a", "d0"), ("b", "d1"), ("c", "d0")):
            assert (await use(bench, name)).lease.device_name == device
        blocking = await acquire(bench, "c")
        moved = await acquire(bench, "a")
        assert moved.lease.device_name == "d1"
        assert len(bench.pool.residents_of("a-v1")) == 2
        bench.leasing.release(blocking.lease.lease_id, 1.0, False)
        # The idle device has no room; c was used later, but a has a copy elsewhere.
        third = await acquire(bench, "d")
        assert third.lease.device_name == "d0"
        assert [r.device.name for r in bench.pool.residents_of("a-v1")] == ["d1"]
        bench.leasing.release(moved.lease.lease_id, 1.0, False)
        bench.leasing.release(third.lease.lease_id, 1.0, False)
        await bench.quiesce()
        memory(bench)


async def test_an_executor_goes_back_to_a_copy_that_is_still_there(make_bench: type[Bench]) -> None:
    async with make_bench({"d0": 10, "d1": 10}) as bench:
        for name in "abc":
            await serve(bench, name, 4)

        def release(*leases: Granted) -> None:
            for granted in leases:
                bench.leasing.release(granted.lease.lease_id, 1.0, False)

        await use(bench, "a")
        # What has to be loaded goes to the device that has rested longer, what is there already not.
        blocking = await acquire(bench, "c")
        on_d0 = await acquire(bench, "b")
        release(blocking)
        on_d1 = await acquire(bench, "a")
        assert (on_d0.lease.device_name, on_d1.lease.device_name) == ("d0", "d1")
        release(on_d1)
        other = await acquire(bench, "c")
        assert other.lease.device_name == "d1"
        release(on_d0)
        # Its executor is attached to d1, which computes for another now.
        back = await acquire(bench, "a")
        assert back.lease.device_name == "d0"
        assert not back.swapped_in
        assert back.lease.lease_id.split("/")[0] != on_d1.lease.lease_id.split("/")[0]
        release(back, other)


@pytest.mark.parametrize("warm", [True, False])
async def test_a_request_that_is_given_up_at_any_moment_leaves_no_lease(make_bench: type[Bench], warm: bool) -> None:
    async with make_bench({"d0": 10}) as bench:
        await serve(bench, "a", 4)
        outcomes = set()
        for ticks in range(40):
            if warm:
                await use(bench, "a")
            call = Call("a-v1", "r", "router", "1")
            asking = asyncio.create_task(bench.leasing.acquire(call, 100.0))
            for _ in range(ticks):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            outcomes.add(asking.cancelled())
            if not asking.cancelled():
                bench.leasing.release(asking.result().lease.lease_id, 1.0, False)
            await bench.quiesce()
            assert not bench.pool.leases
            assert not len(bench.pool.waiting)
            assert bench.pool.devices["d0"].lease is None
        assert True in outcomes
        memory(bench)


async def test_the_gone_executor_of_a_lease_frees_its_device(make_bench: type[Bench]) -> None:
    async with make_bench({"d0": 10}) as bench:
        await serve(bench, "a", 4, working=2)
        granted = await acquire(bench, "a")
        bench.neighbours.kill(bench.neighbours.instances["unix:i0"])
        bench.sync()
        assert not bench.pool.leases
        assert bench.pool.devices["d0"].ledger.reserved_bytes == 0
        assert granted.lease.resident is not None
        assert granted.lease.resident.state is Tier.DEVICE
        memory(bench)


async def test_loads_wait_for_the_memory_of_a_model_that_is_leaving(make_bench: type[Bench]) -> None:
    async with make_bench({"d0": 10}) as bench:
        await serve(bench, "a", 6)
        await serve(bench, "b", 6)
        await use(bench, "a")
        instance = bench.neighbours.instances["unix:i0"]
        instance.hung = True
        asking = asyncio.create_task(acquire(bench, "b"))
        await bench.quiesce()
        assert bench.pool.residents_of("a-v1")[0].state is Tier.EVICTING
        assert bench.pool.residents_of("b-v1")[0].segment is None
        assert bench.pool.devices["d0"].ledger.mapped_bytes == 6 * PAGE
        instance.hung = False
        await asking
        assert not bench.neighbours.ended


def why(bench: Bench, name: str) -> str:
    """What `rouse describe` says of where a model is."""
    rows = describe(bench.pool, "n", lambda _: 0, host_used=0, host_capacity=0, disk_used=0).residency
    return next(row.reason for row in rows if row.version_id == f"{name}-v1")


async def test_by_early_binding_a_model_without_room_is_refused_at_once_and_nothing_leaves_for_it(
    make_bench: type[Bench], caplog: pytest.LogCaptureFixture
) -> None:
    async with make_bench({"d0": 10, "d1": 8}, binding=Binding.EARLY) as bench:
        for name, pages in (("a", 6), ("b", 6), ("c", 4), ("d", 6)):
            await serve(bench, name, pages)
        assert [(await use(bench, name)).lease.device_name for name in "abca"] == ["d0", "d1", "d0", "d0"]
        assert why(bench, "a").startswith("released")
        before = memory(bench)
        for _ in range(2):
            with pytest.raises(ResourceExhausted, match="--binding late") as caught:
                await acquire(bench, "d")
            assert caught.value.reason == "DEVICE_FULL_EARLY_BINDING"
        assert not len(bench.pool.waiting)
        assert memory(bench) == before
        numbers = f"needs {6 * PAGE} B, most is free on d1: {2 * PAGE} B"
        assert numbers in caught.value.message
        assert why(bench, "d").startswith(f"bound to no device (early binding): {numbers}; ")
        assert [r.getMessage() for r in caplog.records if "not bound" in r.getMessage()] == [
            f"not bound function=d version=d-v1 reason={numbers}"
        ]
        # What nothing serves any more has no claim to its memory.
        bench.neighbours.kill(bench.neighbours.instances["unix:i1"])
        bench.sync()
        granted = await acquire(bench, "d")
        assert granted.lease.device_name == "d1"
        assert "bound early" in granted.reason
        assert not bench.pool.residents_of("b-v1")
        assert bench.pool.models["d-v1"].unbound == ""
        bench.leasing.release(granted.lease.lease_id, 1.0, False)
        memory(bench)


async def test_a_second_copy_comes_from_the_busy_device_over_their_direct_link(make_bench: type[Bench]) -> None:
    links = Topology(links={("d0", "d2"): 1e9})
    settings = interference.Settings(topology=links)
    async with make_bench({"d0": 10, "d1": 10, "d2": 10}, wiring=Wiring(links), interference=settings) as bench:
        await serve(bench, "a", 4, instances=2)
        first = await acquire(bench, "a")
        second = await acquire(bench, "a")
        assert [g.lease.device_name for g in (first, second)] == ["d0", "d2"]
        assert [swap.source for swap in bench.pool.models["a-v1"].swaps] == ["host", "d0"]
        assert "d2 from busy d0 at 1 GB/s" in second.reason
        for granted in (first, second):
            bench.leasing.release(granted.lease.lease_id, 1.0, False)
        memory(bench)
