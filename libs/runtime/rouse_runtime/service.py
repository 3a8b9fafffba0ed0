"""ExecutorService: the instance as gpu-server and node-router see it."""

from __future__ import annotations

from contextlib import aclosing

import grpc

from rouse_common.errors import Internal
from rouse_common.rpc import remaining_s
from rouse_contracts import device
from rouse_runtime.executor import Attachment, Executor

# For callers without a deadline, which our services never are.
DEFAULT_DEADLINE_S = 60.0
# Of a Detach's time, what is kept for unmapping and the answer.
DETACH_MARGIN_S = 0.1


class ExecutorServicer(device.ExecutorServiceServicer):
    """Answers for one loaded function."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def Attach(self, request: device.AttachRequest, context: grpc.aio.ServicerContext) -> device.AttachResponse:
        attachment = Attachment(request.lease_id, request.segment_path, request.device, request.threads)
        await self._executor.attach(attachment, request.size_bytes)
        return device.AttachResponse()

    async def Detach(self, request: device.DetachRequest, context: grpc.aio.ServicerContext) -> device.DetachResponse:
        left_s = remaining_s(context, DEFAULT_DEADLINE_S)
        await self._executor.detach(max(0.0, left_s - DETACH_MARGIN_S))
        return device.DetachResponse()

    async def Execute(
        self, request: device.ExecuteRequest, context: grpc.aio.ServicerContext
    ) -> device.ExecuteResponse:
        responses = self._executor.execute(
            request.lease_id,
            request.request_id,
            request.inputs,
            request.output_names,
            remaining_s(context, DEFAULT_DEADLINE_S),
            request.options if request.HasField("options") else None,
            request.rows,
        )
        async with aclosing(responses):
            async for result in responses:
                return device.ExecuteResponse(
                    outputs=result.outputs,
                    device_ms=result.device_ms,
                    input_ms=result.input_ms,
                    output_ms=result.output_ms,
                )
        raise Internal("NO_RESPONSE", "a function that is not decoupled gave no response")
