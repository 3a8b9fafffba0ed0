"""Shares of devices between tenants, over leases whose length nobody knows beforehand."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_gpu_server.state.shares import Shares
from rouse_gpu_server.state.waiting import Waiter

FAR = 1e9
# Futures need one; nothing is ever awaited on it.
LOOP = asyncio.new_event_loop()
LOOP.close()


def waiter(ticket: int, tenant: str, weight: int = 1) -> Waiter:
    return Waiter(
        ticket, f"v{ticket}", f"r{ticket}", "", "router", "1", 0.0, FAR, 0.0, asyncio.Future(loop=LOOP), FAR,
        tenant=tenant, weight=weight,
    )  # fmt: skip


def test_with_one_tenant_the_order_is_that_of_arrival() -> None:
    shares, waiters = Shares(), [waiter(ticket, "a") for ticket in range(3)]
    shares.granted("a", 1)
    assert shares.order(waiters) is waiters


def test_who_holds_devices_is_behind_who_holds_none() -> None:
    shares = Shares()
    waiters = [*(waiter(ticket, "flood") for ticket in range(4)), waiter(9, "late")]
    # Equal until then: who came first goes first.
    assert [w.ticket for w in shares.order(waiters)] == [0, 9, 1, 2, 3]
    charged = [shares.granted("flood", 1) for _ in range(3)]
    assert shares.order(waiters)[0].ticket == 9
    # As long as what it held turned out to be short it is not behind.
    for part in charged:
        shares.ended("flood", 1, part, 0.0)
    assert [w.ticket for w in shares.order(waiters)][:2] == [0, 9]
    shares.granted("flood", 1)
    shares.clear()
    assert shares.order(waiters)[0].ticket == 0


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=2),
    st.dictionaries(st.sampled_from("abc"), st.floats(0.001, 0.5), min_size=3),
    st.integers(1, 3),
)
def test_tenants_that_always_want_more_hold_devices_by_weight_however_long_their_leases_are(
    weights: dict[str, int], lengths: dict[str, float], devices: int
) -> None:
    shares, held, now = Shares(), dict.fromkeys(weights, 0.0), 0.0
    running: list[tuple[float, str, float]] = []
    tickets = iter(range(1_000_000))
    waiting = [waiter(next(tickets), tenant, weight) for tenant, weight in weights.items() for _ in range(devices + 1)]
    for _ in range(300):
        while len(running) < devices:
            chosen = shares.order(waiting)[0]
            waiting.remove(chosen)
            waiting.append(waiter(next(tickets), chosen.tenant, chosen.weight))
            charged = shares.granted(chosen.tenant, chosen.weight)
            running.append((now + lengths[chosen.tenant], chosen.tenant, charged))
        running.sort()
        now, tenant, charged = running.pop(0)
        held[tenant] += lengths[tenant]
        shares.ended(tenant, weights[tenant], charged, lengths[tenant])
    normal = [held[tenant] / weight for tenant, weight in weights.items()]
    # Leases that run, and guesses that are not corrected yet: one of the longest a device and tenant.
    bound = sum((2 * devices + 1) * max(lengths.values()) / weight for weight in weights.values())
    assert max(normal) - min(normal) <= bound


def test_what_is_typical_follows_what_is_seen() -> None:
    shares = Shares()
    for _ in range(100):
        shares.ended("a", 1, shares.granted("a", 1), 2.0)
    assert shares.granted("a", 1) == pytest.approx(2.0, rel=0.01)
