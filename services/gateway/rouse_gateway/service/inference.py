"""inference.GRPCInferenceService: what clients of the Open Inference Protocol v2 speak."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import grpc

from rouse_common import telemetry
from rouse_common.clock import Clock
from rouse_common.errors import InvalidArgument, Unimplemented
from rouse_common.rpc import remaining_s
from rouse_contracts import inference
from rouse_gateway import protocol
from rouse_gateway.access.caller import current
from rouse_gateway.oip import models
from rouse_gateway.oip.desk import Desk
from rouse_gateway.oip.parameters import MAX_ID_LENGTH
from rouse_gateway.oip.requests import Caller, Request
from rouse_gateway.service.raw import register_raw
from rouse_gateway.service.stream import Stream, StreamSettings
from rouse_gateway.state import Routes

IDEMPOTENCY_HEADER = "idempotency-key"
# Triton's: the first failure in a stream becomes the stream's own.
STRICT_HEADER = "triton_grpc_error"
# Loading reads weights; what stops may have to end what it executes.
MANAGE_TIMEOUT_S = 120.0
STATISTICS_TIMEOUT_S = 5.0

NO_CUDA = (
    "memory of a GPU cannot be shared with the mesh: functions are executed by whichever device is free, on any node; "
    "use system shared memory, or send tensors in raw_input_contents"
)


class InferenceService(inference.GRPCInferenceServiceServicer):
    """Handlers of the protocol.

    Args:
        default_timeout_s: time for a request that sets no deadline.
        mesh_version: answered as the server's version.
        stopping: set when the gateway stops.
    """

    def __init__(
        self,
        routes: Routes,
        desk: Desk,
        clock: Clock,
        default_timeout_s: float,
        mesh_version: str,
        stopping: asyncio.Event,
    ) -> None:
        self._routes = routes
        self._desk = desk
        self._clock = clock
        self._default_timeout_s = default_timeout_s
        self._mesh_version = mesh_version
        self._stopping = stopping

    # ---- Server and models ----------------------------------------------------------------------------

    async def ServerLive(
        self, request: inference.ServerLiveRequest, context: grpc.aio.ServicerContext
    ) -> inference.ServerLiveResponse:
        return inference.ServerLiveResponse(live=True)

    async def ServerReady(
        self, request: inference.ServerReadyRequest, context: grpc.aio.ServicerContext
    ) -> inference.ServerReadyResponse:
        return inference.ServerReadyResponse(ready=self._routes.loaded.is_set())

    async def ServerMetadata(
        self, request: inference.ServerMetadataRequest, context: grpc.aio.ServicerContext
    ) -> inference.ServerMetadataResponse:
        return models.server_metadata(self._mesh_version)

    async def ModelReady(
        self, request: inference.ModelReadyRequest, context: grpc.aio.ServicerContext
    ) -> inference.ModelReadyResponse:
        """Ready means that a request will be served, also where it has to wake the function first."""
        ready = models.is_ready(self._routes.loaded_table(), request.name, request.version)
        return inference.ModelReadyResponse(ready=ready)

    async def ModelMetadata(
        self, request: inference.ModelMetadataRequest, context: grpc.aio.ServicerContext
    ) -> inference.ModelMetadataResponse:
        return models.metadata(self._routes.loaded_table(), request.name, request.version)

    async def ModelConfig(
        self, request: inference.ModelConfigRequest, context: grpc.aio.ServicerContext
    ) -> inference.ModelConfigResponse:
        config = models.config(self._routes.loaded_table(), request.name, request.version)
        return inference.ModelConfigResponse(config=config)

    async def ModelStatistics(
        self, request: inference.ModelStatisticsRequest, context: grpc.aio.ServicerContext
    ) -> inference.ModelStatisticsResponse:
        timeout_s = min(STATISTICS_TIMEOUT_S, remaining_s(context, STATISTICS_TIMEOUT_S))
        return await self._desk.statistics.read(request.name, request.version, timeout_s)

    # ---- Inferences -----------------------------------------------------------------------------------

    async def ModelInfer(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """One inference, serialised request to serialised response."""
        request = await read_request(data)
        reply = await self._desk.inferences.infer(request, _caller(context))
        return b"".join(protocol.write_response(reply, request.id, telemetry.current_trace_id()))

    async def ModelStreamInfer(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """Serialised requests to serialised responses."""
        metadata = _metadata(context)
        settings = StreamSettings(
            # A key of the whole stream would make its requests repetitions of each other: they name their own.
            caller=_caller(context)._replace(idempotency_key=""),
            parent=telemetry.extract(metadata),
            strict=metadata.get(STRICT_HEADER) == "true",
            default_timeout_s=self._default_timeout_s,
        )
        stream = Stream(self._desk.inferences, read_request, self._clock, self._stopping, settings)
        async with aclosing(stream.serve(messages)) as responses:
            async for response in responses:
                yield response

    # ---- The model repository -------------------------------------------------------------------------

    async def RepositoryIndex(
        self, request: inference.RepositoryIndexRequest, context: grpc.aio.ServicerContext
    ) -> inference.RepositoryIndexResponse:
        return self._desk.repository.index(request.ready)

    async def RepositoryModelLoad(
        self, request: inference.RepositoryModelLoadRequest, context: grpc.aio.ServicerContext
    ) -> inference.RepositoryModelLoadResponse:
        timeout_s = remaining_s(context, MANAGE_TIMEOUT_S)
        await self._desk.repository.load(request.model_name, request.parameters, timeout_s)
        return inference.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: inference.RepositoryModelUnloadRequest, context: grpc.aio.ServicerContext
    ) -> inference.RepositoryModelUnloadResponse:
        timeout_s = remaining_s(context, MANAGE_TIMEOUT_S)
        await self._desk.repository.unload(request.model_name, request.parameters, timeout_s)
        return inference.RepositoryModelUnloadResponse()

    # ---- Shared memory --------------------------------------------------------------------------------

    async def SystemSharedMemoryStatus(
        self, request: inference.SystemSharedMemoryStatusRequest, context: grpc.aio.ServicerContext
    ) -> inference.SystemSharedMemoryStatusResponse:
        return self._desk.regions.status(_caller(context).tenant, request.name)

    async def SystemSharedMemoryRegister(
        self, request: inference.SystemSharedMemoryRegisterRequest, context: grpc.aio.ServicerContext
    ) -> inference.SystemSharedMemoryRegisterResponse:
        tenant = _caller(context).tenant
        self._desk.regions.register(tenant, request.name, request.key, request.offset, request.byte_size)
        return inference.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(
        self, request: inference.SystemSharedMemoryUnregisterRequest, context: grpc.aio.ServicerContext
    ) -> inference.SystemSharedMemoryUnregisterResponse:
        self._desk.regions.unregister(_caller(context).tenant, request.name)
        return inference.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(
        self, request: inference.CudaSharedMemoryStatusRequest, context: grpc.aio.ServicerContext
    ) -> inference.CudaSharedMemoryStatusResponse:
        """There are never any regions."""
        if request.name:
            raise _no_cuda("CudaSharedMemoryStatus")
        return inference.CudaSharedMemoryStatusResponse()

    async def CudaSharedMemoryRegister(
        self, request: inference.CudaSharedMemoryRegisterRequest, context: grpc.aio.ServicerContext
    ) -> inference.CudaSharedMemoryRegisterResponse:
        raise _no_cuda("CudaSharedMemoryRegister")

    async def CudaSharedMemoryUnregister(
        self, request: inference.CudaSharedMemoryUnregisterRequest, context: grpc.aio.ServicerContext
    ) -> inference.CudaSharedMemoryUnregisterResponse:
        raise _no_cuda("CudaSharedMemoryUnregister")

    # ---- Settings -------------------------------------------------------------------------------------

    async def TraceSetting(
        self, request: inference.TraceSettingRequest, context: grpc.aio.ServicerContext
    ) -> inference.TraceSettingResponse:
        given = {name: list(setting.value) for name, setting in request.settings.items()}
        if request.model_name:
            self._routes.loaded_table().route(request.model_name)
        found = self._desk.traces.update(request.model_name, given)
        response = inference.TraceSettingResponse()
        for name, values in found.items():
            response.settings[name].value.extend(values)
        return response

    async def LogSettings(
        self, request: inference.LogSettingsRequest, context: grpc.aio.ServicerContext
    ) -> inference.LogSettingsResponse:
        given: dict[str, bool | int | str] = {}
        for name, setting in request.settings.items():
            kind = setting.WhichOneof("parameter_choice")
            if kind is None:
                raise InvalidArgument("BAD_SETTING", f"log setting '{name[:80]}' has no value", parameter=name[:80])
            given[name] = getattr(setting, kind)
        response = inference.LogSettingsResponse()
        for name, value in self._desk.logs.update(given).items():
            if isinstance(value, bool):
                response.settings[name].bool_param = value
            elif isinstance(value, int):
                response.settings[name].uint32_param = value
            else:
                response.settings[name].string_param = value
        return response


async def read_request(data: bytes) -> Request:
    """A serialised ModelInferRequest. Raises InvalidArgument."""
    message, raw = protocol.split_request(data)
    if not raw and protocol.is_heavy(message):
        return await asyncio.to_thread(protocol.read_request, message, raw)
    return protocol.read_request(message, raw)


def _metadata(context: grpc.aio.ServicerContext) -> Mapping[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


def _caller(context: grpc.aio.ServicerContext) -> Caller:
    key: Any = ""
    for name, value in context.invocation_metadata() or ():
        if name == IDEMPOTENCY_HEADER:
            key = value
    if len(key) > MAX_ID_LENGTH:
        raise InvalidArgument(
            "BAD_PARAMETER", f"metadata {IDEMPOTENCY_HEADER}: want at most {MAX_ID_LENGTH} characters"
        )
    tenant, weight = current().tenant, current().weight
    return Caller(tenant, weight, context.time_remaining(), key)


def _no_cuda(method: str) -> Unimplemented:
    return Unimplemented("NOT_SERVED", f"{method} is not served by Rouse: {NO_CUDA}", method=method)


register = register_raw(inference.add_GRPCInferenceServiceServicer_to_server, {"ModelInfer", "ModelStreamInfer"})
