"""ModelStreamInfer without a network: order, sequences, back-pressure, final responses, failures, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

import pytest
from opentelemetry.context import Context

from rouse_common.clock import SystemClock
from rouse_common.errors import Internal, NotFound, RouseError, Unavailable
from rouse_contracts import functions, inference
from rouse_contracts.cluster import RoutingTable
from rouse_gateway import protocol
from rouse_gateway.asked import Answer
from rouse_gateway.oip.requests import Caller, Reply, Request
from rouse_gateway.service import stream as streams
from rouse_gateway.service.inference import read_request
from rouse_gateway.service.stream import Stream, StreamSettings
from rouse_gateway.state import index
from rouse_testkit.front import eventually

Serve = Callable[[Request, Caller], Awaitable[int]]
LONG_S = 30.0


class Inferences:
    """A double of rouse_gateway.oip.inferences: the model "many…" is decoupled and gives as many responses as
    `serve` says; others give one. Raises what `serve` raises."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.started: list[str] = []
        self.ended: list[str] = []
        self.at_work = self.most = self.responses = 0
        self.lefts_s: list[float | None] = []

    def is_decoupled(self, model: str, version: str) -> bool:
        return model.startswith("many")

    async def infer(self, request: Request, caller: Caller) -> Reply:
        async with aclosing(self.stream(request, caller)) as replies:
            return await anext(replies)

    async def stream(self, request: Request, caller: Caller) -> AsyncGenerator[Reply, None]:
        self.started.append(request.id)
        self.lefts_s.append(caller.time_left_s)
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            for _ in range(await self._serve(request, caller)):
                self.responses += 1
                yield reply(request)
        finally:
            self.at_work -= 1
            self.ended.append(request.id)


def reply(request: Request) -> Reply:
    table = RoutingTable(generation=1)
    spec = functions.FunctionSpec(name=request.model)
    version = functions.FunctionVersion(version_id="v", version=1, spec=spec)
    table.functions.add(name=request.model, versions=[version], active_version_id="v")
    return Reply(Answer(index(table).version(request.model, ""), [], functions.Timings(), "r", "n0", ""), [], {})


def message(request_id: str, model: str = "f", **parameters: Any) -> bytes:
    request = inference.ModelInferRequest(model_name=model, id=request_id)
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(request.parameters[name], kind, value)
    return request.SerializeToString()


def make(
    inferences: Inferences, *, strict: bool = False, left_s: float | None = None, stopping: asyncio.Event | None = None
) -> Stream:
    settings = StreamSettings(Caller(time_left_s=left_s), Context(), strict, LONG_S)
    return Stream(inferences, read_request, SystemClock(), stopping or asyncio.Event(), settings)  # type: ignore[arg-type]


async def given(messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    for data in messages:
        yield data


async def collect(stream: Stream, messages: Sequence[bytes]) -> list[inference.ModelStreamInferResponse]:
    async with asyncio.timeout(LONG_S), aclosing(stream.serve(given(messages))) as responses:
        return [inference.ModelStreamInferResponse.FromString(data) async for data in responses]


async def one(request: Request, caller: Caller) -> int:
    return 1


async def test_a_half_closed_stream_is_answered_to_its_end() -> None:
    got = await collect(make(Inferences(one)), [message(str(n)) for n in range(200)])
    assert [response.infer_response.id for response in got] == [str(n) for n in range(200)]
    assert all(response.infer_response.parameters["triton_final_response"].bool_param for response in got)


async def test_an_empty_stream_ends_at_once() -> None:
    assert await collect(make(Inferences(one)), []) == []


async def test_answers_keep_the_order_of_requests_that_are_served_at_once() -> None:
    second = asyncio.Event()

    async def serve(request: Request, caller: Caller) -> int:
        if request.id == "1":
            await second.wait()
        elif request.id == "2":
            second.set()
            raise NotFound("FUNCTION_NOT_FOUND", "there is none")
        return 1

    got = await collect(make(Inferences(serve)), [message("1"), message("2"), message("3")])
    assert [response.infer_response.id for response in got] == ["1", "2", "3"]
    assert [response.error_message for response in got] == ["", "there is none", ""]


async def test_decoupled_responses_go_out_as_they_come() -> None:
    other = asyncio.Event()

    async def serve(request: Request, caller: Caller) -> int:
        if request.id == "1":
            await other.wait()
        else:
            other.set()
        return 2

    got = await collect(make(Inferences(serve)), [message("1", "many"), message("2", "many")])
    assert sorted(response.infer_response.id for response in got) == ["1", "1", "2", "2"]
    assert got[0].infer_response.id == "2"


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("asked", [False, True])
async def test_an_empty_final_response_comes_only_where_it_was_asked_for(count: int, asked: bool) -> None:
    async def serve(request: Request, caller: Caller) -> int:
        return count

    asks = {"triton_enable_empty_final_response": True} if asked else {}
    got = await collect(make(Inferences(serve)), [message("1", "many", **asks)])
    finals = [response.infer_response.parameters["triton_final_response"].bool_param for response in got]
    assert finals == [False] * count + [True] * asked
    assert all(response.infer_response.model_name == "many" for response in got)


async def test_requests_of_one_sequence_are_served_one_after_the_other() -> None:
    def sequence(request_id: str, name: str) -> bytes:
        return message(request_id, "many", sequence_id=name)

    at_work: dict[str, int] = {}

    async def serve(request: Request, caller: Caller) -> int:
        name = request.id[0]
        at_work[name] = at_work.get(name, 0) + 1
        assert at_work[name] == 1, "two requests of a sequence at once"
        for _ in range(3):
            await asyncio.sleep(0)
        at_work[name] -= 1
        if request.id == "a1":
            raise Internal("FUNCTION_RAISED", "failed")
        return 1

    inferences = Inferences(serve)
    await collect(make(inferences), [sequence(f"{name}{n}", name) for n in range(8) for name in "ab"])
    for name in "ab":
        assert [i for i in inferences.started if i[0] == name] == [f"{name}{n}" for n in range(8)]
    assert inferences.most == 2, "sequences do not wait for each other"


async def test_a_failure_is_in_band_and_the_stream_stays_open() -> None:
    async def serve(request: Request, caller: Caller) -> int:
        if request.id == "2":
            raise Unavailable("EXECUTOR_LOST", "the executor died", retry_after_s=1.5)
        return 1

    bad = b"\x0a\xff"
    got = await collect(
        make(Inferences(serve)), [message("1"), message("2"), bad, message("3", priority=-1), message("4")]
    )
    assert [response.infer_response.id for response in got] == ["1", "2", "", "3", "4"]
    assert [bool(response.error_message) for response in got] == [False, True, True, True, False]
    failed = got[1].infer_response.parameters
    assert failed["rouse_reason"].string_param == "EXECUTOR_LOST"
    assert failed["rouse_status"].string_param == "UNAVAILABLE"
    assert failed["rouse_retry_after_s"].double_param == 1.5
    assert failed["triton_final_response"].bool_param
    assert got[2].infer_response.parameters["rouse_reason"].string_param == "MALFORMED_REQUEST"


async def test_a_decoupled_failure_comes_after_the_responses_before_it() -> None:
    class Failing(Inferences):
        async def stream(self, request: Request, caller: Caller) -> AsyncGenerator[Reply, None]:
            yield reply(request)
            raise Internal("FUNCTION_RAISED", "at the second")

    got = await collect(make(Failing(one)), [message("1", "many", triton_enable_empty_final_response=True)])
    assert [response.error_message for response in got] == ["", "at the second"]


async def test_a_strict_stream_ends_with_its_first_failure() -> None:
    async def serve(request: Request, caller: Caller) -> int:
        if request.id == "2":
            raise Internal("FUNCTION_RAISED", "failed")
        return 1

    with pytest.raises(Internal, match="failed"):
        await collect(make(Inferences(serve), strict=True), [message(str(n)) for n in range(4)])


async def test_a_reader_that_stops_reading_stops_the_work() -> None:
    """No more is at work, and no more waits to be read, than the bounds say, however much is sent."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield message(str(sent), "many")

    inferences = Inferences(one)
    async with asyncio.timeout(LONG_S), aclosing(make(inferences).serve(endless())) as responses:
        await anext(responses)
        before = -1
        while before != sent:  # until nothing moves
            before = sent
            for _ in range(100):
                await asyncio.sleep(0)
        assert sent <= streams.MAX_CONCURRENT + streams.MAX_WAITING + 2
        assert inferences.responses <= streams.MAX_CONCURRENT + streams.MAX_WAITING + 1
        await anext(responses)
    assert inferences.at_work == 0, "closing it ends what is at work"


async def test_closing_it_cancels_what_is_at_work() -> None:
    async def never(request: Request, caller: Caller) -> int:
        await asyncio.Event().wait()
        return 1

    inferences = Inferences(never)
    responses = make(inferences).serve(given([message("1"), message("2", "many")]))
    reading = asyncio.ensure_future(anext(responses))
    await eventually(lambda: inferences.at_work == 2, "both are at work")
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading
    await responses.aclose()
    assert inferences.at_work == 0


async def test_a_gateway_that_stops_answers_what_it_read_and_ends_the_stream() -> None:
    stopping, answered = asyncio.Event(), asyncio.Event()

    async def serve(request: Request, caller: Caller) -> int:
        await answered.wait()
        return 1

    async def open_end() -> AsyncIterator[bytes]:
        yield message("1")
        await asyncio.Event().wait()

    inferences = Inferences(serve)
    got: list[bytes] = []

    async def read() -> None:
        async with aclosing(make(inferences, stopping=stopping).serve(open_end())) as responses:
            async for response in responses:
                got.append(response)

    reading = asyncio.ensure_future(read())
    await eventually(lambda: inferences.at_work == 1, "it is at work")
    stopping.set()
    answered.set()
    with pytest.raises(Unavailable, match="stops") as caught:
        await asyncio.wait_for(reading, LONG_S)
    assert caught.value.reason == "STOPPING"
    assert len(got) == 1


async def test_the_time_of_a_request_is_the_shorter_of_its_own_and_the_stream_s() -> None:
    inferences = Inferences(one)
    await collect(make(inferences, left_s=5), [message("1"), message("2", timeout=1_000_000)])
    by_stream, own = inferences.lefts_s
    assert by_stream is not None
    assert own is not None
    assert 4 < by_stream <= 5
    assert 0 < own <= 1


def test_every_error_has_a_text() -> None:
    error = RouseError("X", "")
    assert protocol.write_error(error, "", ""), "an empty error_message would be a success"
    parsed = inference.ModelStreamInferResponse.FromString(protocol.write_error(error, "i", "m"))
    assert parsed.error_message == "UNKNOWN"
