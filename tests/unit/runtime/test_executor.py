"""One loaded function and its worker thread, without a process around them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rouse_common.errors import FailedPrecondition, Internal, InvalidArgument, RouseError, Unavailable
from rouse_contracts import arrays
from rouse_contracts.functions import (
    FunctionSpec,
    FunctionVersion,
    Parameter,
    RequestOptions,
    Signature,
    TensorBatch,
    TensorSpec,
)
from rouse_contracts.functions import Sequence as SequenceMessage
from rouse_runtime.executor import Executor
from rouse_runtime.failures import ExecutorLost, LoadError
from rouse_runtime.handlers.python import adapt, takes_request
from rouse_runtime.job import AHEAD, Result
from rouse_runtime.request import Request, Sequence
from rouse_runtime.watchdog import Watchdog
from rouse_runtime.weights import WeightsRange
from rouse_runtime.worker import Interrupted, Worker

ONE = arrays.to_batch({"x": np.ones(1, dtype=np.float32)}).SerializeToString()
WATCHDOG = Watchdog()
SOON_S = 30.0


class Predict:
    """A handler around a function."""

    casts = True
    mixes = takes_tensors = False
    modules = ()

    def kept(self) -> dict[str, Any]:
        return {}

    def __init__(self, predict: Callable[..., Any], decoupled: bool) -> None:
        self.predict, self.takes_request = adapt(predict, decoupled)


def executor(predict: Callable[..., Any], *, decoupled: bool = False) -> Executor:
    spec = TensorSpec(name="x", datatype="FP32", shape=[-1])
    out = TensorSpec(name="y", datatype="FP32", shape=[-1])
    version = FunctionVersion(
        spec=FunctionSpec(name="f", decoupled=decoupled, signature=Signature(inputs=[spec], outputs=[out]))
    )
    return Executor(
        version, str(Path(__file__).parent), "i1", Predict(predict, decoupled), WeightsRange(0), Worker("test"),
        WATCHDOG, 60.0, lambda: None,
    )  # fmt: skip


async def answers(
    function: Executor, data: bytes = ONE, left_s: float = SOON_S, rows: int = 0, options: RequestOptions | None = None
) -> list[Result]:
    async with aclosing(function.execute("", "r1", data, [], left_s, options, rows)) as results:
        return [result async for result in results]


@asynccontextmanager
async def begun(function: Executor, left_s: float = SOON_S) -> AsyncIterator[AsyncIterator[Result]]:
    async with aclosing(function.execute("", "r1", ONE, [], left_s)) as results:
        yield results


async def until_idle(function: Executor) -> None:
    await function.detach(SOON_S)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.to_thread(threading.Event().wait, 0.01)


def value(result: Result) -> list[float]:
    values: list[float] = arrays.from_batch(TensorBatch.FromString(result.outputs))["y"].tolist()
    return values


# ---- One response ------------------------------------------------------------------------------


async def test_one_response_with_its_times() -> None:
    (result,) = await answers(executor(lambda inputs: {"y": inputs["x"] + 1}))
    assert value(result) == [2]
    assert result.device_ms > 0
    assert result.input_ms > 0
    assert result.output_ms > 0


async def test_a_coroutine_is_awaited() -> None:
    async def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"y": inputs["x"]}

    function = executor(predict)
    for _ in range(3):
        (result,) = await answers(function)
        assert value(result) == [1]


async def test_a_batch_is_checked_going_in_and_coming_out() -> None:
    data = arrays.to_batch({"x": np.arange(3, dtype=np.float32)}).SerializeToString()
    (result,) = await answers(executor(lambda inputs: {"y": inputs["x"]}), data, rows=3)
    assert value(result) == [0, 1, 2]
    with pytest.raises(InvalidArgument, match="in a batch of 2 rows"):
        await answers(executor(lambda inputs: {"y": inputs["x"]}), data, rows=2)
    with pytest.raises(Internal, match="for a batch of 3 rows") as caught:
        await answers(executor(lambda inputs: {"y": inputs["x"][:2]}), data, rows=3)
    assert (caught.value.reason, caught.value.metadata["tensor"]) == ("BAD_RESULT", "y")


async def test_an_iterator_of_a_function_that_is_not_decoupled_is_a_bad_result() -> None:
    closed = []

    def items() -> Iterator[Any]:
        try:
            yield {"y": [1]}
        finally:
            closed.append(True)

    with pytest.raises(Internal, match="decoupled = true") as caught:
        await answers(executor(lambda inputs: items()))
    assert caught.value.reason == "BAD_RESULT"
    with pytest.raises(LoadError, match="decoupled = true"):
        executor(lambda inputs: (yield inputs))


# ---- The request -------------------------------------------------------------------------------


async def test_predict_is_given_the_request_where_it_takes_one() -> None:
    seen: list[Request] = []

    def predict(inputs: dict[str, Any], request: Request) -> dict[str, Any]:
        seen.append(request)
        return {"y": inputs["x"]}

    options = RequestOptions(
        priority=3,
        sequence=SequenceMessage(id="s", start=True),
        parameters={
            "flag": Parameter(bool_value=False), "count": Parameter(int64_value=-2),
            "share": Parameter(double_value=0.5), "text": Parameter(string_value="a"),
            "large": Parameter(uint64_value=2**63),
        },
    )  # fmt: skip
    function = executor(predict)
    await answers(function, options=options)
    await answers(function)
    first, second = seen
    assert (first.id, first.priority, first.sequence) == ("r1", 3, Sequence("s", start=True, end=False))
    assert dict(first.parameters) == {"flag": False, "count": -2, "share": 0.5, "text": "a", "large": 2**63}
    assert (dict(second.parameters), second.priority, second.sequence) == ({}, 0, None)
    assert 0 < second.time_left_s <= SOON_S
    assert not second.cancelled


def test_who_takes_the_request() -> None:
    assert takes_request(lambda inputs, request: None)
    assert takes_request(lambda inputs, request=None: None)
    assert takes_request(lambda inputs, anything: None)
    assert not takes_request(lambda inputs: None)
    assert not takes_request(lambda inputs, threshold=0.5: None)
    assert not takes_request(print)


# ---- Many responses ----------------------------------------------------------------------------


def counting(inputs: dict[str, Any]) -> Iterator[Any]:
    for number in range(5):
        yield {"y": [number]}


async def counting_asynchronously(inputs: dict[str, Any]) -> AsyncIterator[Any]:
    for number in range(5):
        await asyncio.sleep(0)
        yield {"y": [number]}


@pytest.mark.parametrize("predict", [counting, counting_asynchronously])
async def test_a_generator_gives_its_responses_and_then_the_times(predict: Callable[..., Any]) -> None:
    function = executor(predict, decoupled=True)
    for _ in range(2):
        *results, last = await answers(function)
        assert [value(result) for result in results] == [[0], [1], [2], [3], [4]]
        assert not any(result.device_ms for result in results)
        assert (last.outputs, last.device_ms > 0) == (b"", True)


async def test_a_decoupled_function_may_give_one_response_or_none() -> None:
    first, last = await answers(executor(lambda inputs: {"y": inputs["x"]}, decoupled=True))
    assert (value(first), last.outputs) == ([1], b"")
    (last,) = await answers(executor(lambda inputs: iter(()), decoupled=True))
    assert last.outputs == b""


async def test_what_is_wrong_in_mid_stream_comes_after_what_was_right() -> None:
    def raising(inputs: dict[str, Any]) -> Iterator[Any]:
        yield {"y": [1]}
        raise ValueError("no more")

    def wrong(inputs: dict[str, Any]) -> Iterator[Any]:
        yield {"y": [1]}
        yield {"z": [1]}

    for predict, reason in ((raising, "FUNCTION_RAISED"), (wrong, "BAD_RESULT")):
        function = executor(predict, decoupled=True)
        async with begun(function) as results:
            assert value(await anext(results)) == [1]
            with pytest.raises(Internal) as caught:
                await anext(results)
        assert caught.value.reason == reason
        await until_idle(function)


async def test_responses_come_as_they_are_made_and_a_slow_reader_stops_the_generator() -> None:
    made: list[int] = []

    def endless(inputs: dict[str, Any]) -> Iterator[Any]:
        while True:
            made.append(len(made))
            yield {"y": [made[-1]]}

    function = executor(endless, decoupled=True)
    async with begun(function) as results:
        for number in range(10):
            assert value(await anext(results)) == [number]
            # One more is made, and waits to be put among those that wait for the reader.
            assert len(made) <= number + 1 + AHEAD + 1
        await until(lambda: len(made) == 10 + AHEAD + 1)
    await until_idle(function)
    assert len(made) == 10 + AHEAD + 1


async def test_a_reader_that_goes_away_closes_the_generator_at_its_yield() -> None:
    ended: list[str | bool] = []

    def predict(inputs: dict[str, Any], request: Request) -> Iterator[Any]:
        try:
            while not request.cancelled:
                yield {"y": [1]}
        except GeneratorExit:
            ended.append("closed")
            raise
        finally:
            ended.append(request.cancelled)

    function = executor(predict, decoupled=True)
    async with begun(function) as results:
        await anext(results)
    await until_idle(function)
    assert ended == ["closed", True]
    assert len(await answers(executor(counting, decoupled=True))) == 6


async def test_a_generator_that_does_not_yield_is_interrupted() -> None:
    entered, seen = threading.Event(), []

    def predict(inputs: dict[str, Any]) -> Iterator[Any]:
        yield {"y": [1]}
        try:
            while True:
                entered.set()
        except Interrupted:
            seen.append(True)
            raise

    function = executor(predict, decoupled=True)
    async with begun(function) as results:
        await anext(results)
        assert await asyncio.to_thread(entered.wait, SOON_S)
    await until_idle(function)
    assert seen == [True]


async def test_a_generator_waits_for_its_reader_up_to_the_deadline_only() -> None:
    closed = threading.Event()

    def endless(inputs: dict[str, Any]) -> Iterator[Any]:
        try:
            while True:
                yield {"y": [1]}
        finally:
            closed.set()

    function = executor(endless, decoupled=True)
    async with begun(function, left_s=0.2) as results:
        await anext(results)
        assert await asyncio.to_thread(closed.wait, SOON_S)


# ---- Cancellation ------------------------------------------------------------------------------


async def test_who_looks_whether_it_was_cancelled_has_the_time_to_leave() -> None:
    left, entered = [], threading.Event()

    def predict(inputs: dict[str, Any], request: Request) -> dict[str, Any]:
        entered.set()
        while not request.cancelled:
            pass
        left.append(True)
        return {"y": inputs["x"]}

    function = executor(predict)
    task = asyncio.create_task(answers(function))
    assert await asyncio.to_thread(entered.wait, SOON_S)
    with pytest.raises(FailedPrecondition) as caught:
        await answers(function)
    assert caught.value.reason == "EXECUTOR_BUSY"
    task.cancel()
    await until_idle(function)
    assert left == [True]


async def test_an_interruption_hits_user_code_and_nothing_else() -> None:
    """Requests of all lengths, each cancelled at a random moment: what follows is served as if nothing had been."""
    entered = threading.Event()

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        entered.set()
        return {"y": [sum(range(int(inputs["x"][0])))]}

    function = executor(predict)
    rng = np.random.default_rng(1)
    for size in rng.integers(0, 20_000, 150):
        data = arrays.to_batch({"x": np.array([size], dtype=np.float32)}).SerializeToString()
        task = asyncio.create_task(answers(function, data))
        await asyncio.sleep(0)
        entered.clear()
        await asyncio.to_thread(entered.wait, 0.001)
        task.cancel()
        await asyncio.wait([task])
        await until_idle(function)
        (result,) = await answers(function)
        assert value(result) == [0]


def test_the_worker_takes_an_interruption_back_that_came_too_late() -> None:
    worker, loop = Worker("test"), asyncio.new_event_loop()
    hit, missed = 0, 0
    stop = threading.Event()

    def press() -> None:
        while not stop.is_set():
            worker.interrupt(worker)

    def ours() -> None:
        nonlocal hit, missed
        for length in range(300):
            try:
                worker.call(worker, lambda count: sum(n for n in range(count)), length)
                missed += 1
            except Interrupted:
                hit += 1
            assert sum(range(length)) >= 0

    presser = threading.Thread(target=press)
    presser.start()
    try:
        for _ in range(20):
            loop.run_until_complete(worker.run(ours))
    finally:
        stop.set()
        presser.join()
        loop.close()
    assert hit + missed == 20 * 300


async def test_errors_are_typed() -> None:
    with pytest.raises(RouseError) as caught:
        await answers(executor(lambda inputs: {"y": inputs["z"]}))
    assert caught.value.reason == "FUNCTION_RAISED"
    with pytest.raises(InvalidArgument):
        await answers(executor(lambda inputs: {"y": inputs["x"]}), b"\xff")

    def lost(inputs: dict[str, Any]) -> Any:
        raise ExecutorLost("its process has ended")

    with pytest.raises(Unavailable) as caught:
        await answers(executor(lost))
    assert caught.value.reason == "EXECUTOR_LOST"
