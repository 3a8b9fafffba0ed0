"""What redirected functions hold beside their weights: learnt from executors, kept in the ledger, made room for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rouse_contracts.functions import EXECUTION_ROUSE
from rouse_gpu_server.logic.leasing import Call, Granted, misfit
from rouse_policy import eviction
from rouse_testkit.gpu import make_model

if TYPE_CHECKING:
    from conftest import Bench

PAGE = 4096
# What the one tape of every redirected version answers.
KEY = "x:FP32:1;"
# No time passes here.
SETTINGS = eviction.Settings(min_residency_s=0.0)


async def taped(bench: Bench, name: str, pages: int, working: int = 0) -> None:
    """Brings a function that tapes answer to host memory."""
    model = make_model(name, [pages * PAGE], working_bytes=working * PAGE)
    model.version.spec.execution = EXECUTION_ROUSE
    model.version.addresses.base = 1 << 40
    bench.make(model)
    bench.sync()
    await bench.membership.stage_version(model.version)


async def acquire(bench: Bench, name: str) -> Granted:
    async with asyncio.timeout(10):
        return await bench.leasing.acquire(Call(f"{name}-v1", f"r-{name}", "router", "1", tape_key=KEY), 100.0)


async def release(bench: Bench, granted: Granted) -> None:
    """Ends a lease, and lets the executor be asked."""
    bench.leasing.release(granted.lease.lease_id, 1.0, False)
    await bench.quiesce()
    bench.check_memory()


async def use(bench: Bench, name: str) -> None:
    await release(bench, await acquire(bench, name))


def pages(bench: Bench) -> tuple[int, int]:
    """Mapped and reserved."""
    ledger = bench.pool.devices["d0"].ledger
    return ledger.mapped_bytes // PAGE, ledger.reserved_bytes // PAGE


def holds(bench: Bench, name: str, pages: int) -> None:
    bench.cores["d0"].held[f"{name}-v1"] = pages * PAGE - 5


def here(bench: Bench) -> set[str]:
    return {version_id.removesuffix("-v1") for version_id in bench.pool.devices["d0"].residents}


async def test_what_was_measured_stays_reserved_as_long_as_the_function_is_on_the_device(
    make_bench: type[Bench],
) -> None:
    async with make_bench({"d0": 10}, eviction=SETTINGS) as bench:
        await taped(bench, "a", 4)
        await taped(bench, "b", 4)
        holds(bench, "b", 2)
        await use(bench, "a")
        await use(bench, "b")
        assert (here(bench), pages(bench)) == ({"a", "b"}, (8, 2))
        # Eviction gives it back with the weights, and the next load reserves it before anything runs.
        await bench.membership.drop_version("a-v1", "")
        for resident in bench.pool.residents_of("b-v1"):
            await bench.swapper.evict(resident, "for the test")
        assert pages(bench) == (0, 0)
        granted = await acquire(bench, "b")
        assert pages(bench) == (4, 2)
        await release(bench, granted)


async def test_another_model_leaves_for_what_was_measured(make_bench: type[Bench]) -> None:
    async with make_bench({"d0": 10}, eviction=SETTINGS) as bench:
        await taped(bench, "a", 4)
        await taped(bench, "b", 4)
        await use(bench, "a")
        await use(bench, "b")
        assert here(bench) == {"a", "b"}
        holds(bench, "b", 3)
        await use(bench, "b")
        assert (here(bench), pages(bench)) == ({"b"}, (4, 3))
        left = bench.pool.models["a-v1"].left
        assert left is not None
        assert "others need more memory than was known" in left.reason
        # From now on they are known not to fit together.
        await use(bench, "a")
        assert (here(bench), pages(bench)) == ({"a"}, (4, 0))


async def test_room_is_made_once_what_executes_has_ended(make_bench: type[Bench]) -> None:
    async with make_bench({"d0": 10}, eviction=SETTINGS) as bench:
        await taped(bench, "a", 4)
        await taped(bench, "b", 4)
        await use(bench, "a")
        await use(bench, "b")
        holding = await acquire(bench, "a")
        bench.pool.measured("b-v1", 8 * PAGE)
        bench.wakeup.kick()
        await bench.quiesce()
        # Nothing but b itself can leave now: it needs all that the device has beside its weights.
        assert (here(bench), pages(bench)) == ({"a"}, (4, 0))
        await release(bench, holding)
        await use(bench, "b")
        assert (here(bench), pages(bench)) == ({"b"}, (4, 6))


async def test_more_than_a_device_has_is_cut_to_what_it_has_beside_the_weights(make_bench: type[Bench]) -> None:
    async with make_bench({"d0": 10, "d1": 8}, eviction=SETTINGS) as bench:
        await taped(bench, "a", 4)
        await use(bench, "a")
        bench.pool.measured("a-v1", 1000 * PAGE)
        model = bench.pool.models["a-v1"]
        assert model.working_bytes == 6 * PAGE
        assert misfit(bench.pool, model) is None
        for _ in range(2):
            await use(bench, "a")
        assert here(bench) == {"a"}


async def test_a_lease_adds_what_is_declared_beyond_what_stays(make_bench: type[Bench]) -> None:
    async with make_bench({"d0": 10}, eviction=SETTINGS) as bench:
        await taped(bench, "a", 4, working=3)
        granted = await acquire(bench, "a")
        assert pages(bench) == (4, 3)
        # Learnt under the lease, it is not counted twice.
        bench.pool.measured("a-v1", 2 * PAGE)
        assert pages(bench) == (4, 3)
        await release(bench, granted)
        assert pages(bench) == (4, 2)
        granted = await acquire(bench, "a")
        assert pages(bench) == (4, 3)
        # It held more than it declared: sessions and replays together may.
        bench.pool.measured("a-v1", 5 * PAGE)
        assert pages(bench) == (4, 5)
        await release(bench, granted)
        assert pages(bench) == (4, 5)


async def test_a_figure_never_falls_and_is_of_known_versions(make_bench: type[Bench]) -> None:
    async with make_bench({"d0": 10}, eviction=SETTINGS) as bench:
        await taped(bench, "a", 4)
        assert bench.pool.measured("a-v1", 2 * PAGE)
        assert not bench.pool.measured("a-v1", PAGE)
        assert not bench.pool.measured("gone-v1", PAGE)
        assert bench.pool.models["a-v1"].measured_bytes == 2 * PAGE
