"""The list of those who wait."""

from __future__ import annotations

import asyncio

from rouse_gpu_server.state.waiting import Waiter, WaitingList


def enter(waiting: WaitingList, version: str, instance: str = "", tape_key: str = "") -> Waiter:
    waiter = Waiter(
        ticket=waiting.next_ticket(), version_id=version, request_id="r", acquire_id=f"{version}-a", owner="o",
        incarnation="1", arrived=0.0, deadline=9.0, arrived_at=0.0, outcome=asyncio.get_running_loop().create_future(),
        hold_until=9.0, instance_id=instance, tape_key=tape_key,
    )  # fmt: skip
    waiting.add(waiter)
    return waiter


async def test_heads_are_the_oldest_of_each_version_in_the_order_of_arrival() -> None:
    waiting = WaitingList(10)
    first, other, second, third = (enter(waiting, v) for v in "abaa")
    assert waiting.heads({"a": 1}, 1) == [first, other, second]
    assert waiting.heads({}, 1) == [first, other]
    assert list(waiting.of("a")) == [first, second, third]


async def test_who_waits_for_one_instance_holds_nobody_else_up() -> None:
    waiting = WaitingList(10)
    bound = [enter(waiting, "a", instance) for instance in ("i1", "i1", "i2")]
    free = enter(waiting, "a")
    assert waiting.heads({}, 1) == [bound[0], bound[2], free]
    assert waiting.bound("a") == bound
    assert list(waiting.of("a")) == [*bound, free]
    waiting.remove(bound[0])
    waiting.put_back(bound[0])
    assert waiting.heads({}, 1)[0] is bound[0]
    for waiter in [*bound, free]:
        waiting.remove(waiter)
    assert waiting.versions() == []


async def test_whom_tapes_answer_may_all_go_at_once_and_hold_nobody_up() -> None:
    waiting = WaitingList(10)
    taped = [enter(waiting, "a", tape_key=key) for key in ("x", "y", "x")]
    free, bound = enter(waiting, "a"), enter(waiting, "a", "i1")
    assert waiting.heads({}, 1) == [taped[0], taped[1], free, bound]
    assert waiting.heads({}, 2) == [*taped, free, bound]
    assert waiting.bound("a") == [bound]
    assert waiting.needing_instances("a") == [free, bound]
    waiting.remove(taped[0])
    waiting.put_back(taped[0])
    assert waiting.heads({}, 0)[0] is taped[0]


async def test_who_is_put_back_gets_the_old_place() -> None:
    waiting = WaitingList(10)
    first, second = enter(waiting, "a"), enter(waiting, "a")
    waiting.remove(first)
    assert waiting.heads({}, 1) == [second]
    waiting.put_back(first)
    assert waiting.heads({}, 1) == [first]


async def test_it_is_bounded_and_removing_twice_is_no_error() -> None:
    waiting = WaitingList(2)
    first, second = enter(waiting, "a"), enter(waiting, "b")
    assert waiting.full
    for _ in range(2):
        waiting.remove(first)
    assert not waiting.full
    assert waiting.versions() == ["b"]
    assert waiting.find("b-a") is second
    assert waiting.find("a-a") is None
