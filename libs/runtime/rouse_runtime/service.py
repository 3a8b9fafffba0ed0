"""ExecutorService: the instance as gpu-server sees it, over gRPC, and as node-router does, over a link."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import grpc
from google.protobuf.message import DecodeError

from rouse_common.errors import InvalidArgument
from rouse_common.link import Buffer, Incoming, LinkServer
from rouse_common.rpc import remaining_s
from rouse_contracts import device, wire
from rouse_contracts.links import EXECUTE
from rouse_runtime.executor import Attachment, Executor
from rouse_runtime.job import Result

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


class ExecuteLink:
    """Takes requests over the instance's link."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def add_to(self, server: LinkServer) -> None:
        server.add(EXECUTE, self.execute)

    async def execute(self, message: Buffer, call: Incoming) -> Sequence[Buffer] | None:
        try:
            rest, inputs = wire.split_bytes(message, device.ExecuteRequest.INPUTS_FIELD_NUMBER)
            request = device.ExecuteRequest.FromString(rest)
        except DecodeError as error:
            raise InvalidArgument("BAD_REQUEST", f"that is no ExecutorService.ExecuteRequest: {error}") from None
        responses = self._executor.execute(
            request.lease_id,
            request.request_id,
            inputs,
            request.output_names,
            call.remaining_s,
            request.options if request.HasField("options") else None,
            request.rows,
        )
        async with aclosing(responses):
            async for result in responses:
                if not self._executor.decoupled:
                    return _message(result)
                await call.send(_message(result))
        return None


def _message(result: Result) -> Sequence[Buffer]:
    head = device.ExecuteResponse(
        device_ms=result.device_ms, input_ms=result.input_ms, output_ms=result.output_ms
    ).SerializeToString()
    return wire.joined(head, device.ExecuteResponse.OUTPUTS_FIELD_NUMBER, result.outputs)
