"""Answers to requests that come again, on a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rouse_cache import Answers, Known, Name, answers
from rouse_common.errors import Unavailable
from rouse_embedded.stores import Redis

NAME = Name("acme", "f", "key-1")


@pytest.fixture
async def kept(redis_url: str) -> AsyncIterator[Answers]:
    made = Answers.connect(redis_url)
    yield made
    await made.close()


async def test_one_of_many_runs_and_the_others_get_its_answer(kept: Answers) -> None:
    found = await asyncio.gather(*(kept.reserve(NAME, "digest", 60) for _ in range(10)))
    (first,) = [one for one in found if one.known is Known.NEW]
    others = [one for one in found if one.known is Known.RUNNING]
    assert len(others) == 9
    assert all(50 < one.left_s <= 60 for one in others)
    await kept.keep(NAME, first.owner, b"\x00answer\xff")
    again = await kept.reserve(NAME, "digest", 60)
    assert (again.known, again.answer) == (Known.DONE, b"\x00answer\xff")
    for name in (Name("other", "f", "key-1"), Name("acme", "g", "key-1"), Name("acme", "f", "key-2")):
        assert (await kept.reserve(name, "digest", 60)).known is Known.NEW


async def test_a_key_with_other_inputs_is_told_apart(kept: Answers) -> None:
    first = await kept.reserve(NAME, "digest", 60)
    assert (await kept.reserve(NAME, "other", 60)).known is Known.OTHER
    await kept.keep(NAME, first.owner, b"a")
    assert (await kept.reserve(NAME, "other", 60)).known is Known.OTHER


async def test_what_did_not_run_may_come_again_and_what_may_have_is_lost(kept: Answers) -> None:
    first = await kept.reserve(NAME, "digest", 60)
    await kept.forget(NAME, first.owner)
    second = await kept.reserve(NAME, "digest", 60)
    assert second.known is Known.NEW
    await kept.keep(NAME, first.owner, b"late")  # not its to end any more
    assert (await kept.reserve(NAME, "digest", 60)).known is Known.RUNNING
    await kept.lose(NAME, second.owner)
    assert (await kept.reserve(NAME, "digest", 60)).known is Known.LOST


async def test_who_dies_leaves_a_request_that_may_have_run(kept: Answers) -> None:
    await kept.reserve(NAME, "digest", 0.01)
    async with asyncio.timeout(20):
        while (found := await kept.reserve(NAME, "digest", 60)).known is Known.RUNNING:
            continue
    assert found.known is Known.LOST


async def test_what_a_tenant_keeps_is_bounded(kept: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 100)
    first = await kept.reserve(NAME, "digest", 60)
    await kept.keep(NAME, first.owner, b"x" * 101)
    assert (await kept.reserve(NAME, "digest", 60)).known is Known.LARGE
    monkeypatch.setattr(answers, "TENANT_BYTES", 3 * answers.RECORD_BYTES)
    second, third = [await kept.reserve(Name("acme", "f", str(number)), "d", 60) for number in range(2)]
    assert (second.known, third.known) == (Known.NEW, Known.NEW)
    await kept.keep(Name("acme", "f", "0"), second.owner, b"small")
    assert (await kept.reserve(Name("acme", "f", "0"), "d", 60)).known is Known.LARGE
    assert (await kept.reserve(Name("acme", "f", "2"), "d", 60)).known is Known.FULL
    assert (await kept.reserve(Name("other", "f", "2"), "d", 60)).known is Known.NEW


async def test_without_redis_it_is_unavailable(tmp_path: Path) -> None:
    server = Redis(tmp_path / "redis")
    await asyncio.to_thread(server.start)
    kept = Answers.connect(server.url)
    await kept.reserve(NAME, "digest", 60)
    await asyncio.to_thread(server.stop)
    with pytest.raises(Unavailable) as caught:
        await kept.reserve(NAME, "digest", 60)
    assert caught.value.reason == "CACHE_UNAVAILABLE"
    assert caught.value.retry_after_s
    await kept.close()
