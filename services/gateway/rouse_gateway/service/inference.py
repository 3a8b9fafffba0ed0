"""inference.GRPCInferenceService: what clients of the Open Inference Protocol v2 speak."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from rouse_common.errors import Unimplemented
from rouse_common.telemetry import current_trace_id
from rouse_contracts import inference
from rouse_contracts.functions import ARTEFACT_FORMAT_HUGGING_FACE, FUNCTION_STATE_DELETING, FUNCTION_STATE_FAILED
from rouse_gateway import protocol
from rouse_gateway.dispatch import Call, Dispatcher
from rouse_gateway.service.raw import register_raw
from rouse_gateway.state import Routes

SERVER_NAME = "rouse"
# Extensions of the protocol that work here: none of those that have a name.
EXTENSIONS: tuple[str, ...] = ()

_BY_DEMAND = "functions are loaded by their first request, and FunctionService.WakeFunction loads one ahead of it"
_NO_SHARED_MEMORY = "shared memory regions are not served; send tensors in ModelInfer's raw_input_contents"
# What is not served, and what to use instead.
UNSERVED = {
    "ModelConfig": "call ModelMetadata for a model's tensors",
    "ModelStatistics": "read the gateway's Prometheus metrics, or rouse.functions.v1.FunctionService.GetFunction",
    "RepositoryIndex": "call rouse.functions.v1.FunctionService.ListFunctions",
    "RepositoryModelLoad": _BY_DEMAND,
    "RepositoryModelUnload": "functions go to sleep by themselves; FunctionService.DeleteFunction removes one",
    "SystemSharedMemoryStatus": _NO_SHARED_MEMORY,
    "SystemSharedMemoryRegister": _NO_SHARED_MEMORY,
    "SystemSharedMemoryUnregister": _NO_SHARED_MEMORY,
    "CudaSharedMemoryStatus": _NO_SHARED_MEMORY,
    "CudaSharedMemoryRegister": _NO_SHARED_MEMORY,
    "CudaSharedMemoryUnregister": _NO_SHARED_MEMORY,
    "TraceSetting": "every request is traced; call rouse.functions.v1.FunctionService.GetTrace with its trace id",
    "LogSettings": "set ROUSE_<SERVICE>_LOG_LEVEL where a service is started",
}
UNSERVED_STREAM = "call ModelInfer once a request; responses are not streamed"


def _unserved(method: str, advice: str) -> Unimplemented:
    return Unimplemented("NOT_SERVED", f"{method} is not served by Rouse: {advice}", method=method)


class InferenceService(inference.GRPCInferenceServiceServicer):
    """Handlers of the protocol.

    Args:
        default_timeout_s: time for a request that sets no deadline.
        mesh_version: answered as the server's version.
    """

    def __init__(self, routes: Routes, dispatcher: Dispatcher, default_timeout_s: float, mesh_version: str) -> None:
        self._routes = routes
        self._dispatcher = dispatcher
        self._default_timeout_s = default_timeout_s
        self._mesh_version = mesh_version

    async def ServerLive(
        self, request: inference.ServerLiveRequest, context: grpc.aio.ServicerContext
    ) -> inference.ServerLiveResponse:
        return inference.ServerLiveResponse(live=True)

    async def ServerReady(
        self, request: inference.ServerReadyRequest, context: grpc.aio.ServicerContext
    ) -> inference.ServerReadyResponse:
        return inference.ServerReadyResponse(ready=self._routes.loaded.is_set())

    async def ModelReady(
        self, request: inference.ModelReadyRequest, context: grpc.aio.ServicerContext
    ) -> inference.ModelReadyResponse:
        """Ready means that a request will be served, also where it has to wake the function first."""
        route = self._routes.loaded_table().functions.get(request.name)
        ready = (
            route is not None
            and request.version in route.versions
            and route.state not in (FUNCTION_STATE_FAILED, FUNCTION_STATE_DELETING)
        )
        return inference.ModelReadyResponse(ready=ready)

    async def ServerMetadata(
        self, request: inference.ServerMetadataRequest, context: grpc.aio.ServicerContext
    ) -> inference.ServerMetadataResponse:
        return inference.ServerMetadataResponse(name=SERVER_NAME, version=self._mesh_version, extensions=EXTENSIONS)

    async def ModelMetadata(
        self, request: inference.ModelMetadataRequest, context: grpc.aio.ServicerContext
    ) -> inference.ModelMetadataResponse:
        table = self._routes.loaded_table()
        version = table.version(request.name, request.version)
        contract = version.contract
        numbers = [number for number in table.route(request.name).versions if number]
        tensor = inference.ModelMetadataResponse.TensorMetadata
        hugging_face = contract.format == ARTEFACT_FORMAT_HUGGING_FACE
        return inference.ModelMetadataResponse(
            name=version.function,
            versions=[version.number] if request.version else sorted(numbers, key=int),
            platform="rouse_hugging_face" if hugging_face else "rouse_python",
            inputs=[tensor(name=t.name, datatype=t.datatype, shape=t.shape) for t in contract.spec.signature.inputs],
            outputs=[tensor(name=t.name, datatype=t.datatype, shape=t.shape) for t in contract.spec.signature.outputs],
        )

    async def ModelInfer(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """One inference, serialised request to serialised response."""
        request, raw = protocol.split_request(data)
        bounds = [s for s in (context.time_remaining(), protocol.read_timeout(request)) if s is not None]
        timeout_s = min(bounds, default=self._default_timeout_s)
        if not raw and protocol.is_heavy(request):
            inputs = await asyncio.to_thread(protocol.read_inputs, request, raw)
        else:
            inputs = protocol.read_inputs(request, raw)
        call = Call(request.model_name, request.model_version, inputs, protocol.read_outputs(request), timeout_s)
        answer = await self._dispatcher.infer(call)
        return protocol.write_response(answer, request.id, current_trace_id())

    async def ModelStreamInfer(self, requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        raise _unserved("ModelStreamInfer", UNSERVED_STREAM)
        yield  # makes it the generator that the interceptor iterates over


def _refusing(method: str, advice: str) -> Callable[..., Awaitable[Any]]:
    async def refuse(self: InferenceService, request: Any, context: grpc.aio.ServicerContext) -> Any:
        raise _unserved(method, advice)

    refuse.__name__ = method
    return refuse


for _method, _advice in UNSERVED.items():
    setattr(InferenceService, _method, _refusing(_method, _advice))

register = register_raw(inference.add_GRPCInferenceServiceServicer_to_server, {"ModelInfer"})
