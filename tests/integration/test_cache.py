"""Windows against a real Redis: what two services count is what a third one reads, over an outage too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import redis.asyncio

from rouse_cache import Activity, Windows
from rouse_cache import windows as module
from rouse_common.errors import Unavailable
from rouse_embedded.stores import Redis
from rouse_testkit.clock import ManualClock

Connect = Callable[[], Windows]


class Watched:
    """Tells a test how each flush of a Windows went."""

    def __init__(self, windows: Windows) -> None:
        self._outcomes: asyncio.Queue[bool] = asyncio.Queue()
        self._flush = windows.flush
        windows.flush = self._watched  # type: ignore[method-assign]

    async def _watched(self) -> None:
        try:
            await self._flush()
        except Unavailable:
            self._outcomes.put_nowait(False)
            raise
        self._outcomes.put_nowait(True)

    async def next(self, *, succeeded: bool) -> None:
        while await self._outcomes.get() is not succeeded:
            pass


@pytest.fixture
async def connect(redis_url: str, manual_clock: ManualClock) -> AsyncIterator[Connect]:
    opened: list[Windows] = []

    def make() -> Windows:
        opened.append(Windows.connect(redis_url, manual_clock))
        return opened[-1]

    yield make
    for windows in opened:
        await windows.close()


async def test_what_several_services_count_is_added_up(connect: Connect, manual_clock: ManualClock) -> None:
    gateways, router, scaler = (connect(), connect()), connect(), connect()
    for second in range(3):
        for gateway in gateways:
            for _ in range(5):
                gateway.count_arrival("bert")
            await gateway.flush()
        router.count_completion("bert", 20.5)
        router.count_completion("gpt:2", 1.25)
        await router.flush()
        if second < 2:
            manual_clock.advance(1)
    manual_clock.advance(1)
    assert await scaler.activity(10) == {
        "bert": Activity(arrivals=30, completions=3, device_ms=61.5, window_s=10),
        "gpt:2": Activity(arrivals=0, completions=3, device_ms=3.75, window_s=10),
    }
    assert (await scaler.activity(1))["bert"] == Activity(10, 1, 20.5, 1)
    assert (await scaler.activity(10))["bert"].arrival_rate == 3.0
    assert (await scaler.activity(10))["bert"].instance_rate == pytest.approx(1000 / 20.5)


async def test_the_present_second_is_left_out(connect: Connect, manual_clock: ManualClock) -> None:
    windows = connect()
    windows.count_arrival("f")
    await windows.flush()
    assert await windows.activity(5) == {}
    manual_clock.advance(1)
    assert (await windows.activity(5))["f"].arrivals == 1
    manual_clock.advance(5)
    assert await windows.activity(5) == {}


async def test_last_arrival_never_goes_back(connect: Connect, manual_clock: ManualClock) -> None:
    early, late = connect(), connect()
    early.count_arrival("f")
    first = manual_clock.now()
    manual_clock.advance(0.5)
    late.count_arrival("f")
    await late.flush()
    await early.flush()
    assert await early.last_arrivals() == {"f": pytest.approx(first + 0.5, abs=1e-3)}
    manual_clock.advance(module.LAST_ARRIVAL_RETENTION_S + 1)
    early.count_arrival("g")
    await early.flush()
    assert set(await early.last_arrivals()) == {"g"}


async def test_forgetting_a_function_leaves_the_others(connect: Connect, manual_clock: ManualClock) -> None:
    windows = connect()
    for function in ("goes", "stays"):
        windows.count_arrival(function)
        windows.count_completion(function, 3.0)
    await windows.flush()
    windows.count_arrival("goes")
    await windows.forget("goes")
    await windows.flush()
    manual_clock.advance(1)
    assert set(await windows.activity(10)) == {"stays"}
    assert set(await windows.last_arrivals()) == {"stays"}


async def test_windows_expire(connect: Connect, redis_url: str, manual_clock: ManualClock) -> None:
    windows = connect()
    windows.count_arrival("f")
    await windows.flush()
    client = redis.asyncio.Redis.from_url(redis_url)
    ttl = await client.ttl(module.window_key(int(manual_clock.now())))
    await client.aclose()
    assert 0 < ttl <= module.RETENTION_S


async def test_run_writes_by_itself(connect: Connect) -> None:
    windows = connect()
    written = Watched(windows)
    running = asyncio.create_task(windows.run())
    async with asyncio.timeout(10):
        for number in range(3):
            windows.count_arrival(f"f{number}")
            await written.next(succeeded=True)
            assert len(await windows.last_arrivals()) == number + 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_an_outage_loses_nothing_and_is_logged_once(
    tmp_path: Path, manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rouse_cache")
    server = Redis(tmp_path / "redis")
    server.start()
    windows = Windows.connect(server.url, manual_clock)
    flushes = Watched(windows)
    running = asyncio.create_task(windows.run())
    try:
        async with asyncio.timeout(30):
            windows.count_arrival("before")
            await flushes.next(succeeded=True)
            server.kill()
            with pytest.raises(Unavailable, match="redis does not answer") as refused:
                await windows.activity(5)
            assert refused.value.reason == "CACHE_UNAVAILABLE"
            for _ in range(7):
                windows.count_arrival("f")
            for _ in range(3):
                await flushes.next(succeeded=False)
            assert len(caplog.messages) == 1
            await asyncio.to_thread(server.start)
            await flushes.next(succeeded=True)
        manual_clock.advance(1)
        assert (await windows.activity(5))["f"].arrivals == 7
        assert caplog.messages[1:] == ["redis works again, activity is written"]
    finally:
        running.cancel()
        await windows.close()
        server.stop()


async def test_a_flush_that_is_cancelled_stops_and_loses_nothing(connect: Connect, manual_clock: ManualClock) -> None:
    windows = connect()
    for moment in range(40):
        windows.count_arrival("f")
        flushing = asyncio.create_task(windows.flush())
        for _ in range(moment):
            # One turn of the event loop, so that the cancellation comes at another step each time.
            await asyncio.sleep(0)
        if flushing.cancel():
            with pytest.raises(asyncio.CancelledError):
                await flushing
    await windows.flush()
    manual_clock.advance(1)
    assert (await windows.activity(5))["f"].arrivals == 40


async def test_counts_are_bounded_while_redis_is_away(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 10)
    windows = Windows.connect("redis://127.0.0.1:1/0", manual_clock)
    for number in range(25):
        windows.count_arrival(f"f{number}")
    with pytest.raises(Unavailable):
        await windows.flush()
    assert "entries=15" in caplog.text
    manual_clock.advance(module.RETENTION_S + 1)
    caplog.clear()
    await windows.flush()
    assert "entries=10" in caplog.text
    await windows.close()


async def test_a_window_longer_than_what_is_kept_is_refused(connect: Connect) -> None:
    with pytest.raises(ValueError, match="want 1 to"):
        await connect().activity(module.RETENTION_S)
