"""ExecutorService: the instance as gpu-server sees it, over gRPC, and as node-router does, over a link."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

import grpc
from google.protobuf.message import DecodeError

from rouse_common.errors import InvalidArgument
from rouse_common.link import BlockingLinkServer, Buffer, Incoming, LinkServer, Ongoing
from rouse_common.rpc import remaining_s
from rouse_contracts import core, device, wire
from rouse_contracts.functions import RequestOptions
from rouse_contracts.links import EXECUTE
from rouse_runtime.executor import Attachment, Executor
from rouse_runtime.job import Result
from rouse_runtime.request import Request
from rouse_runtime.worker import Worker

if TYPE_CHECKING:
    from rouse_runtime.redirected.recording import Recording

# For callers without a deadline, which our services never are.
DEFAULT_DEADLINE_S = 60.0
# Of a Detach's time, what is kept for unmapping and the answer.
DETACH_MARGIN_S = 0.1


class ExecutorServicer(device.ExecutorServiceServicer):
    """Attaches and detaches one loaded function."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def Attach(self, request: device.AttachRequest, context: grpc.aio.ServicerContext) -> device.AttachResponse:
        attachment = Attachment(
            request.lease_id, request.segment_path, request.device, request.threads, request.session_path
        )
        await self._executor.attach(attachment, request.size_bytes)
        return device.AttachResponse()

    async def Detach(self, request: device.DetachRequest, context: grpc.aio.ServicerContext) -> device.DetachResponse:
        left_s = remaining_s(context, DEFAULT_DEADLINE_S)
        await self._executor.detach(max(0.0, left_s - DETACH_MARGIN_S))
        return device.DetachResponse()

    async def ListRecordings(
        self, request: device.ListRecordingsRequest, context: grpc.aio.ServicerContext
    ) -> device.ListRecordingsResponse:
        recorder = self._executor.recorder
        if recorder is None:
            return device.ListRecordingsResponse(refused="it is not redirected, or has no weights")
        return device.ListRecordingsResponse(
            recordings=[_recording(entry) for entry in recorder.recordings()], refused=recorder.refused
        )


def execute_link(executor: Executor, worker: Worker, listen: str, max_message_bytes: int) -> Serves:
    """What takes an instance's requests: the worker itself, or for any number of responses the event loop."""
    if executor.decoupled:
        streams = LinkServer(listen, max_message_bytes=max_message_bytes)
        streams.add(EXECUTE, _Streams(executor).execute)
        return streams
    server = BlockingLinkServer(
        listen,
        worker,
        max_message_bytes=max_message_bytes,
        on_given_up=executor.give_up,
        busy=executor.busy_error,
    )
    server.add(EXECUTE, _Answers(executor).execute)
    return server


class Serves(Protocol):
    """A link's serving end."""

    async def start(self) -> None: ...

    async def stop(self, drain_s: float) -> None: ...


class _Answers:
    """Requests with one response each, in the worker's thread."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def execute(self, message: Buffer, call: Ongoing) -> Sequence[Buffer]:
        request, inputs = _parsed(message)
        result = self._executor.answer(
            request.lease_id,
            Request(request.request_id, _options(request), call.remaining_s),
            inputs,
            request.output_names,
            request.rows,
            lambda: call.given_up,
        )
        return _message(result)


class _Streams:
    """Requests with any number of responses, on the event loop."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def execute(self, message: Buffer, call: Incoming) -> None:
        request, inputs = _parsed(message)
        responses = self._executor.execute(
            request.lease_id,
            request.request_id,
            inputs,
            request.output_names,
            call.remaining_s,
            _options(request),
            request.rows,
        )
        async with aclosing(responses):
            async for result in responses:
                await call.send(_message(result))


def _parsed(message: Buffer) -> tuple[device.ExecuteRequest, Buffer]:
    """The request without its inputs, and these. Raises InvalidArgument BAD_REQUEST."""
    try:
        rest, inputs = wire.split_bytes(message, device.ExecuteRequest.INPUTS_FIELD_NUMBER)
        return device.ExecuteRequest.FromString(rest), inputs
    except DecodeError as error:
        raise InvalidArgument("BAD_REQUEST", f"that is no ExecutorService.ExecuteRequest: {error}") from None


def _options(request: device.ExecuteRequest) -> RequestOptions | None:
    return request.options if request.HasField("options") else None


def _recording(recording: Recording) -> device.Recording:
    inputs = [core.TapeTensor(name=x.name, datatype=x.datatype, shape=x.shape) for x in recording.inputs]
    return device.Recording(
        signature=recording.signature,
        inputs=inputs,
        output_names=recording.outputs,
        requests=recording.requests,
    )


def _message(result: Result) -> Sequence[Buffer]:
    head = device.ExecuteResponse(
        device_ms=result.device_ms, input_ms=result.input_ms, output_ms=result.output_ms
    ).SerializeToString()
    return wire.joined(head, device.ExecuteResponse.OUTPUTS_FIELD_NUMBER, result.outputs)
