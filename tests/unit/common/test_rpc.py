"""RpcServer and call, over real gRPC: health, reflection, errors, traces, cancellation, drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import REGISTRY

from rouse_common import errors, telemetry
from rouse_common.rpc import Channels, RpcServer, call, remaining_s
from rouse_contracts import functions, inference

MESSAGE_BYTES = 1 << 20
INFER = "/rouse.functions.v1.FunctionService/Infer"
LOGS = "/rouse.functions.v1.FunctionService/ReadLogs"


class Functions(functions.FunctionServiceServicer):
    """Does what the test sets."""

    def __init__(self) -> None:
        self.infer: Callable[[Any, Any], Any] = lambda request, context: functions.InferResponse()
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self.go_on = asyncio.Event()

    async def Infer(self, request: functions.InferRequest, context: Any) -> functions.InferResponse:
        self.entered.set()
        try:
            answer = self.infer(request, context)
            response: functions.InferResponse = await answer if asyncio.iscoroutine(answer) else answer
            return response
        finally:
            self.left.set()

    async def ReadLogs(
        self, request: functions.ReadLogsRequest, context: Any
    ) -> AsyncIterator[functions.ReadLogsResponse]:
        try:
            for number in range(request.tail):
                yield functions.ReadLogsResponse(lines=[str(number)])
            if request.follow:
                self.entered.set()
                await self.go_on.wait()
            if request.function:
                raise errors.NotFound("FUNCTION_NOT_FOUND", "there is none", function=request.function)
        finally:
            self.left.set()


class Inference(inference.GRPCInferenceServiceServicer):
    async def ServerLive(self, request: Any, context: Any) -> Any:
        return inference.ServerLiveResponse(live=True)


class Site:
    """A server and a client of it."""

    def __init__(self) -> None:
        self.functions = Functions()
        self.server = RpcServer("127.0.0.1:0", max_message_bytes=MESSAGE_BYTES)
        self.server.add(functions.add_FunctionServiceServicer_to_server, self.functions, functions.DESCRIPTOR)
        self.server.add(inference.add_GRPCInferenceServiceServicer_to_server, Inference(), inference.DESCRIPTOR)
        self.channels = Channels(MESSAGE_BYTES)

    @property
    def channel(self) -> grpc.aio.Channel:
        return self.channels.get(self.server.address)

    @property
    def stub(self) -> functions.FunctionServiceStub:
        return functions.FunctionServiceStub(self.channel)

    async def infer(self, **fields: Any) -> functions.InferResponse:
        answer: functions.InferResponse = await call(self.stub.Infer, functions.InferRequest(**fields), timeout_s=10)
        return answer

    async def health(self, service: str = "") -> int:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await call(health_pb2_grpc.HealthStub(self.channel).Check, request, timeout_s=10)
        state: int = answer.status
        return state


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    await site.server.start()
    yield site
    await site.channels.close()
    await site.server.stop(0)


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_health_follows_the_service_overall_and_by_name(site: Site) -> None:
    state = health_pb2.HealthCheckResponse
    names = ("", "rouse.functions.v1.FunctionService", "inference.GRPCInferenceService")
    assert [await site.health(name) for name in names] == [state.NOT_SERVING] * 3
    await site.server.set_serving(True)
    assert [await site.health(name) for name in names] == [state.SERVING] * 3
    await site.server.set_serving(False)
    assert [await site.health(name) for name in names] == [state.NOT_SERVING] * 3
    with pytest.raises(errors.NotFound):
        await site.health("rouse.nobody.v1.Nobody")


async def test_reflection_knows_every_service_over_both_descriptor_pools(site: Site) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(site.channel)
    kind = reflection_pb2.ServerReflectionRequest
    symbols = ["rouse.functions.v1.FunctionService", "inference.GRPCInferenceService", "inference.ModelInferRequest"]
    asked = [kind(list_services=""), *(kind(file_containing_symbol=symbol) for symbol in symbols)]
    listed, *files = [answer async for answer in stub.ServerReflectionInfo(iter(asked), timeout=10)]
    assert {service.name for service in listed.list_services_response.service} == {
        "rouse.functions.v1.FunctionService",
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    for symbol, answer in zip(symbols, files, strict=True):
        found = b"".join(answer.file_descriptor_response.file_descriptor_proto)
        assert symbol.rpartition(".")[2].encode() in found, answer


async def test_a_typed_error_arrives_as_it_was_raised(site: Site) -> None:
    def refuse(request: Any, context: Any) -> None:
        raise errors.ResourceExhausted(
            "QUEUE_FULL", "the queue of 'größe' is full\nwait", retry_after_s=1.5, function="größe", reason="r"
        )

    site.functions.infer = refuse
    before = metric("rouse_rpc_requests_total", method=INFER, code="RESOURCE_EXHAUSTED")
    with pytest.raises(errors.ResourceExhausted) as caught:
        await site.infer()
    error = caught.value
    assert (error.reason, error.message) == ("QUEUE_FULL", "the queue of 'größe' is full\nwait")
    assert (error.retry_after_s, error.metadata) == (1.5, {"function": "größe", "reason": "r"})
    assert metric("rouse_rpc_requests_total", method=INFER, code="RESOURCE_EXHAUSTED") == before + 1
    assert metric("rouse_rpc_in_flight", method=INFER) == 0


@pytest.mark.parametrize("text", ["x" * 100_000, "größe" * 20_000, "\n" * 20_000, "☃" * 9_000])
async def test_an_error_of_any_length_arrives(site: Site, text: str) -> None:
    def refuse(request: Any, context: Any) -> None:
        raise errors.NotFound("FUNCTION_NOT_FOUND", text, function=text, node=text, device=text)

    site.functions.infer = refuse
    with pytest.raises(errors.NotFound) as caught:
        await site.infer()
    assert caught.value.reason == "FUNCTION_NOT_FOUND"
    assert text.startswith(caught.value.message.removesuffix("…"))
    assert len(caught.value.message) > 300


async def test_an_unexpected_error_is_logged_here_and_not_told_there(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: Any, context: Any) -> None:
        raise RuntimeError("password=hunter2")

    site.functions.infer = fail
    with caplog.at_level(logging.ERROR), pytest.raises(errors.Internal) as caught:
        await site.infer()
    assert caught.value.reason == "INTERNAL_ERROR"
    assert "hunter2" not in caught.value.message + str(caught.value.metadata)
    assert INFER in caught.value.message
    (record,) = [record for record in caplog.records if record.name == "rouse_common.observed"]
    assert record.exc_info is not None
    assert "hunter2" in str(record.exc_info[1])


async def test_running_out_of_time_inside_is_a_deadline(site: Site) -> None:
    async def slow(request: Any, context: Any) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    site.functions.infer = slow
    with pytest.raises(errors.DeadlineExceeded):
        await site.infer()


async def test_the_deadline_travels_and_cancels(site: Site) -> None:
    seen: list[float] = []

    async def slow(request: Any, context: Any) -> None:
        seen.append(remaining_s(context, 99.0))
        await asyncio.Event().wait()

    site.functions.infer = slow
    with pytest.raises(errors.DeadlineExceeded):
        await call(site.stub.Infer, functions.InferRequest(), timeout_s=0.3)
    async with asyncio.timeout(10):
        await site.functions.left.wait()
    assert 0 < seen[0] <= 0.35


async def test_time_that_is_over_is_a_deadline(site: Site) -> None:
    for timeout_s in (0.0, -1.0):
        with pytest.raises(errors.DeadlineExceeded):
            await call(site.stub.Infer, functions.InferRequest(), timeout_s=timeout_s)


async def test_without_a_deadline_the_default_holds(site: Site) -> None:
    seen: list[float] = []

    def note(request: Any, context: Any) -> functions.InferResponse:
        seen.append(remaining_s(context, 7.0))
        return functions.InferResponse()

    site.functions.infer = note
    await site.stub.Infer(functions.InferRequest())
    assert seen == [7.0]


async def test_cancelling_a_call_cancels_its_handler(site: Site) -> None:
    async def slow(request: Any, context: Any) -> None:
        await asyncio.Event().wait()

    site.functions.infer = slow
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        calling = tasks.create_task(site.infer())
        await site.functions.entered.wait()
        calling.cancel()
        await site.functions.left.wait()
    assert calling.cancelled()


async def test_a_channel_that_closes_under_a_call_is_no_cancellation(site: Site) -> None:
    async def slow(request: Any, context: Any) -> None:
        await asyncio.Event().wait()

    site.functions.infer = slow
    stub = site.stub
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:

        async def calling() -> str:
            with pytest.raises(errors.Unavailable) as caught:
                await call(stub.Infer, functions.InferRequest(), timeout_s=10)
            return caught.value.reason

        task = tasks.create_task(calling())
        await site.functions.entered.wait()
        await site.channels.forget(site.server.address)
    assert task.result() == "UNAVAILABLE"
    with pytest.raises(errors.Unavailable, match="closed"):
        await call(stub.Infer, functions.InferRequest(), timeout_s=10)


async def test_nobody_there_is_unavailable() -> None:
    channels = Channels(MESSAGE_BYTES)
    stub = functions.FunctionServiceStub(channels.get("127.0.0.1:1"))
    with pytest.raises(errors.Unavailable):
        await call(stub.Infer, functions.InferRequest(), timeout_s=10)
    await channels.close()


async def test_a_stream_ends_with_its_typed_error(site: Site) -> None:
    stream = site.stub.ReadLogs(functions.ReadLogsRequest(tail=3, function="f"), timeout=10)
    assert [(await stream.read()).lines for _ in range(3)] == [["0"], ["1"], ["2"]]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    typed = errors.from_rpc_error(caught.value)
    assert (type(typed), typed.reason, typed.metadata) == (errors.NotFound, "FUNCTION_NOT_FOUND", {"function": "f"})


@pytest.mark.parametrize("follow", [True, False])
async def test_a_reader_that_leaves_a_stream_ends_it(
    site: Site, caplog: pytest.LogCaptureFixture, follow: bool
) -> None:
    """Whether the handler waits for news or for the reader to take what is there."""
    before = metric("rouse_rpc_requests_total", method=LOGS, code="CANCELLED")
    tail = 1 if follow else 1_000_000
    stream = site.stub.ReadLogs(functions.ReadLogsRequest(tail=tail, follow=follow), timeout=30)
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(10):
            assert (await stream.read()).lines == ["0"]
            if follow:
                await site.functions.entered.wait()
            stream.cancel()
            await site.functions.left.wait()
            while metric("rouse_rpc_in_flight", method=LOGS):  # noqa: ASYNC110 - left just after the handler
                await asyncio.sleep(0)
    assert metric("rouse_rpc_requests_total", method=LOGS, code="CANCELLED") == before + 1
    assert [record.getMessage() for record in caplog.records] == []


async def test_the_trace_of_a_caller_goes_on_in_the_handler(site: Site) -> None:
    seen: list[str] = []

    def note(request: Any, context: Any) -> functions.InferResponse:
        seen.append(telemetry.current_trace_id())
        return functions.InferResponse()

    site.functions.infer = note
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    metadata = ((telemetry.TRACEPARENT, f"00-{trace_id}-b7ad6b7169203331-01"),)
    await site.stub.Infer(functions.InferRequest(), metadata=metadata, timeout=10)
    assert seen == [trace_id]
    assert telemetry.current_trace_id() == ""


async def test_a_message_past_the_limit_is_refused(site: Site) -> None:
    with pytest.raises(errors.ResourceExhausted):
        await site.infer(request_id="x" * (MESSAGE_BYTES + 1))
    assert not site.functions.entered.is_set()


async def test_stopping_waits_for_calls_in_flight_and_takes_no_more(site: Site) -> None:
    async def slow(request: Any, context: Any) -> functions.InferResponse:
        await site.functions.go_on.wait()
        return functions.InferResponse(request_id="done")

    site.functions.infer = slow
    await site.server.set_serving(True)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        calling = tasks.create_task(site.infer())
        await site.functions.entered.wait()
        stopping = tasks.create_task(site.server.stop(15))
        other = Channels(MESSAGE_BYTES)

        async def new_connections() -> None:
            while True:  # the listening socket closes a moment after stop was asked for
                stub = health_pb2_grpc.HealthStub(other.get(site.server.address))
                await call(stub.Check, health_pb2.HealthCheckRequest(), timeout_s=5)
                await other.forget(site.server.address)

        with pytest.raises(errors.Unavailable):
            await new_connections()
        assert not stopping.done()
        site.functions.go_on.set()
        answer = await calling
    assert answer.request_id == "done"
    await other.close()


async def test_a_drain_is_bounded(site: Site) -> None:
    async def slow(request: Any, context: Any) -> None:
        await asyncio.Event().wait()

    site.functions.infer = slow
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:

        async def calling() -> None:
            with pytest.raises(errors.Unavailable):
                await site.infer()

        task = tasks.create_task(calling())
        await site.functions.entered.wait()
        await site.server.stop(0.1)
        await task


async def test_a_handler_may_say_that_it_was_cancelled(site: Site) -> None:
    def refuse(request: Any, context: Any) -> None:
        raise errors.Cancelled("FUNCTION_DELETED", "the function was deleted")

    site.functions.infer = refuse
    with pytest.raises(errors.Cancelled) as caught:
        await site.infer()
    assert caught.value.reason == "FUNCTION_DELETED"


async def test_a_taken_address_is_an_error_that_names_it(site: Site) -> None:
    other = RpcServer(site.server.address, max_message_bytes=MESSAGE_BYTES)
    with pytest.raises(OSError, match=site.server.address):
        await other.start()
    await other.stop(0)


async def test_channels_are_shared_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channels, "MAX", 2)
    channels = Channels(MESSAGE_BYTES)
    assert channels.get("127.0.0.1:1") is channels.get("127.0.0.1:1")
    channels.get("127.0.0.1:2")
    with pytest.raises(errors.Unavailable, match=r"127\.0\.0\.1:3"):
        channels.get("127.0.0.1:3")
    await channels.forget("127.0.0.1:1")
    channels.get("127.0.0.1:3")
    await channels.close()
