"""Leases are taken over while nobody else waits, and whoever waits has somebody asking for it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rouse_common.clock import Clock, SystemClock
from rouse_common.errors import DeadlineExceeded, ResourceExhausted
from rouse_node_router.adapters.devices import Lease
from rouse_node_router.leases import REST_S, Leases
from rouse_testkit.clock import ManualClock

WAIT_S = 20.0


class Gpu:
    """Grants one lease at a time, in the order of asking."""

    def __init__(self) -> None:
        self.free = asyncio.Lock()
        self.granted: set[str] = set()
        self.asked = 0
        self.requests: list[int] = []
        self.refuse: Exception | None = None
        self._numbers = itertools.count()

    async def acquire(
        self, version_id: str, request_id: str, timeout_s: float, hold_s: float, instance_id: str = "",
        tenant: str = "", weight: int = 1, tape_key: str = "",
    ) -> Lease:  # fmt: skip
        self.asked += 1
        if self.refuse is not None:
            raise self.refuse
        async with asyncio.timeout(timeout_s):
            await self.free.acquire()
        lease = Lease(version_id, f"l{next(self._numbers)}", "unix:x", "gpu0", 0.0, False, tape_key=tape_key)
        self.granted.add(lease.lease_id)
        return lease

    def release(self, lease: Lease, device_ms: float, *, abandoned: bool, requests: int = 1, replays: int = 0) -> None:
        self.granted.remove(lease.lease_id)
        self.requests.append(requests)
        self.free.release()

    async def released(self, timeout_s: float) -> None:
        """Everything is given back at once here."""


@asynccontextmanager
async def leasing(reuse_s: float = 0.05, clock: Clock | None = None) -> AsyncIterator[tuple[Leases, Gpu]]:
    gpu = Gpu()
    async with asyncio.TaskGroup() as tasks:
        leases = Leases(gpu, tasks, clock or SystemClock(), reuse_s)  # type: ignore[arg-type]
        yield leases, gpu
        await leases.released(1)
    assert not gpu.granted, "a lease was not given back"


async def use(leases: Leases, version: str, again: bool = True, timeout_s: float = WAIT_S, tape_key: str = "") -> Lease:
    lease = await leases.acquire(version, "r", timeout_s, 2 * timeout_s, tape_key=tape_key)
    try:
        await asyncio.sleep(0)
    finally:
        leases.release(lease, 1.0, abandoned=not again, again=again)
    return lease


async def test_a_client_that_asks_at_once_takes_its_lease_over() -> None:
    async with leasing(reuse_s=10) as (leases, gpu):
        first = [(await use(leases, "a")).lease_id for _ in range(20)]
        assert (gpu.asked, set(first)) == (1, {"l0"})


async def test_a_lease_goes_on_to_the_next_request_and_counts_every_one() -> None:
    async with leasing(reuse_s=10) as (leases, gpu):
        lease = await leases.acquire("a", "r", WAIT_S, 2 * WAIT_S)
        for _ in range(4):
            on = leases.go_on(lease, 1.0, replayed=False)
            assert on is not None
            assert on.lease_id == lease.lease_id
        leases.release(lease, 1.0, abandoned=False, again=False)
        assert (gpu.asked, gpu.requests) == (1, [5])


async def test_a_lease_that_went_on_to_nobody_rests_and_goes_to_whoever_waits() -> None:
    async with leasing(reuse_s=10) as (leases, _):
        lease = await leases.acquire("a", "r", WAIT_S, 2 * WAIT_S)
        waiting = asyncio.ensure_future(leases.acquire("a", "s", WAIT_S / 2, WAIT_S))
        await asyncio.sleep(0)
        on = leases.go_on(lease, 1.0, replayed=False)
        assert on is not None
        leases.rest(on)
        assert (await waiting).lease_id == lease.lease_id
        leases.release(lease, 1.0, abandoned=False, again=True)


async def test_a_lease_does_not_go_on_while_another_version_waits_or_when_its_time_is_up() -> None:
    clock = ManualClock()
    async with leasing(reuse_s=10, clock=clock) as (leases, _):
        lease = await leases.acquire("a", "r", WAIT_S, 2 * WAIT_S)
        waiting = asyncio.ensure_future(leases.acquire("b", "s", WAIT_S, 2 * WAIT_S))
        await asyncio.sleep(0)
        assert leases.go_on(lease, 1.0, replayed=False) is None
        leases.release(lease, 1.0, abandoned=False, again=True)
        other = await waiting
        clock.advance(11)
        assert leases.go_on(other, 1.0, replayed=False) is None
        leases.release(other, 1.0, abandoned=False, again=True)


async def test_a_lease_that_has_just_begun_to_rest_stays() -> None:
    clock = ManualClock()
    async with leasing(reuse_s=10, clock=clock) as (leases, gpu):
        for _ in range(5):
            clock.advance(0.7 * REST_S)
            await use(leases, "a")
            clock.advance(0.7 * REST_S)
            # As by the timer of the rest before.
            leases._tidy(leases._lines["a", ""])
            assert leases._lines["a", ""].resting
        assert gpu.asked == 1
        line = leases._lines["a", ""]
        clock.advance(0.7 * REST_S)
        leases._tidy(line)
        assert not line.resting


async def test_under_steady_load_no_ask_is_taken_back() -> None:
    async with leasing(reuse_s=10) as (leases, gpu):

        async def client() -> None:
            for _ in range(200):
                await use(leases, "a")

        clients = [asyncio.create_task(client()) for _ in range(4)]
        await asyncio.sleep(0)
        while not all(each.done() for each in clients):
            leases._tidy(leases._lines["a", ""])
            await asyncio.sleep(0)
        await asyncio.gather(*clients)
        assert gpu.asked <= 8, "one for the lease and one for each who waits, and some at the start"


async def test_whoever_comes_while_asks_are_taken_back_is_served() -> None:
    async with leasing(reuse_s=10) as (leases, _):
        held = await leases.acquire("a", "r", WAIT_S, 2 * WAIT_S)
        late = asyncio.create_task(leases.acquire("a", "r", WAIT_S, 2 * WAIT_S))
        await asyncio.sleep(0)
        leases.release(held, 1.0, abandoned=False, again=True)
        taken = await late  # the same lease: its own ask is left over
        leases._tidy(leases._lines["a", ""])
        leases._tidy(leases._lines["a", ""])  # and is taken back now: nobody has waited since the last time
        next_one = asyncio.create_task(leases.acquire("a", "r", WAIT_S, 2 * WAIT_S))
        await asyncio.sleep(0)
        leases.release(taken, 1.0, abandoned=True, again=False)
        async with asyncio.timeout(10):
            leases.release(await next_one, 1.0, abandoned=False, again=True)


async def test_a_lease_is_not_taken_over_by_what_may_outlast_it() -> None:
    async with leasing(reuse_s=10) as (leases, gpu):
        short = await use(leases, "a", timeout_s=1.0)
        long = await use(leases, "a", timeout_s=60.0)
        assert (short.lease_id, long.lease_id, gpu.asked) == ("l0", "l1", 2)
        assert short.until < long.until


async def test_what_rests_makes_way_for_another_version() -> None:
    async with leasing(reuse_s=10) as (leases, gpu):
        await use(leases, "a")
        async with asyncio.timeout(REST_S * 500):
            await use(leases, "b")
        assert gpu.asked == 2


async def test_a_lease_that_only_tapes_answer_under_is_taken_over_by_requests_of_its_kind() -> None:
    async with leasing(reuse_s=10) as (leases, gpu):
        assert {(await use(leases, "a", tape_key="x;")).lease_id for _ in range(20)} == {"l0"}
        # Another kind, an instance, and the first kind again: none of them has what the one before had.
        for count, key in enumerate(["y;", "", "x;", "y;"], 2):
            lease = await use(leases, "a", tape_key=key)
            assert (gpu.asked, lease.tape_key) == (count, key)


async def test_a_lease_that_only_tapes_answer_under_goes_back_when_others_wait() -> None:
    async with leasing(reuse_s=10) as (leases, gpu):
        held = await leases.acquire("a", "r", WAIT_S, 2 * WAIT_S, tape_key="x;")
        mine = asyncio.create_task(leases.acquire("a", "r", WAIT_S, 2 * WAIT_S, tape_key="x;"))
        await asyncio.sleep(0)
        leases.release(held, 1.0, abandoned=False, again=True)
        held = await mine
        assert (held.lease_id, gpu.asked) == ("l0", 2), "who waits for the same takes it over"
        others = [
            asyncio.create_task(leases.acquire(version, "r", WAIT_S, 2 * WAIT_S, instance, tape_key=key))
            for version, instance, key in [("b", "", ""), ("a", "i1", ""), ("a", "", "y;")]
        ]
        await asyncio.sleep(0)
        leases.release(held, 1.0, abandoned=False, again=True)
        assert held.lease_id not in gpu.granted
        for other in asyncio.as_completed(others):
            leases.release(await other, 1.0, abandoned=False, again=True)


async def test_a_refusal_is_told_and_a_deadline_is_one_s_own() -> None:
    async with leasing() as (leases, gpu):
        gpu.refuse = ResourceExhausted("DEVICE_WAIT_FULL", "full")
        with pytest.raises(ResourceExhausted):
            await use(leases, "a")
        gpu.refuse = DeadlineExceeded("DEVICE_WAIT_TIMEOUT", "late")
        with pytest.raises(DeadlineExceeded, match="no device became free"):
            await use(leases, "a", timeout_s=0.05)


STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=25
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_nobody_waits_for_nothing(steps: list[tuple[str, bool, bool, int]]) -> None:
    async def play() -> None:
        async with leasing(reuse_s=0.003) as (leases, _):
            running = []
            for version, again, cancel, turns in steps:
                task = asyncio.create_task(use(leases, version, again))
                running.append(task)
                for _ in range(turns):
                    await asyncio.sleep(0)
                if cancel:
                    task.cancel()
                for line in list(leases._lines.values()):
                    if turns == 3:
                        leases._tidy(line)
                    assert len(line.asks) >= len(line.waiting)
            async with asyncio.timeout(WAIT_S / 2):
                await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(play())
