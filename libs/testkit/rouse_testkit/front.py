"""A client's view on a gateway under test, and the doubles behind it."""

from __future__ import annotations

import asyncio
import inspect
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from rouse_contracts import functions, inference
from rouse_contracts.status import ErrorDetails, decode_details
from rouse_testkit.doubles_gateway import Control, NodeDouble

EVENTUALLY_S = 10.0


async def eventually(holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Returns once `holds`; fails after EVENTUALLY_S, saying `what` did not come."""
    try:
        async with asyncio.timeout(EVENTUALLY_S):
            while True:
                result = holds()
                if await result if inspect.isawaitable(result) else result:
                    return
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"did not come about within {EVENTUALLY_S} s: {what}") from None


async def refused(call: Awaitable[Any]) -> tuple[grpc.StatusCode, ErrorDetails, str]:
    """Status code, details and message of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), decode_details(caught.value), caught.value.details() or ""


def floats(tensor: functions.Tensor) -> list[float]:
    return list(struct.unpack(f"<{len(tensor.data) // 4}f", tensor.data))


def fp32(name: str, *values: float) -> functions.Tensor:
    """An FP32 tensor of one dimension."""
    data = struct.pack(f"<{len(values)}f", *values)
    return functions.Tensor(name=name, datatype="FP32", shape=[len(values)], data=data)


@dataclass
class Front:
    """A gateway and what is around it.

    Args:
        http: the address of REST v2, host:port.
        generation: the generation of the routing table that the gateway has in use.
        stop: stops the gateway and returns when it has ended.
    """

    control: Control
    node: NodeDouble
    address: str
    http: str
    channel: grpc.aio.Channel
    mesh: functions.FunctionServiceStub
    models: inference.GRPCInferenceServiceStub
    folder: Path
    generation: Callable[[], int]
    stop: Callable[[], Awaitable[None]]

    async def publish(self) -> None:
        """Publishes what the control plane's double holds, and returns when the gateway has it in use."""
        await self.control.changed()
        await self.settled()

    async def settled(self) -> None:
        await eventually(
            lambda: self.generation() == self.control.generation, f"generation {self.control.generation} is in use"
        )

    def infer(self, function: str, *values: float, timeout: float | None = 10, **fields: Any) -> Any:
        """The call of FunctionService.Infer with one FP32 input x."""
        request = functions.InferRequest(function=function, inputs=[fp32("x", *values)], **fields)
        return self.mesh.Infer(request, timeout=timeout)

    def model_infer(self, model: str, *values: float, timeout: float | None = 10, **fields: Any) -> Any:
        """The call of ModelInfer with one raw FP32 input x; parameters as fields of the request."""
        request = self.model_request(model, *values)
        for name, value in fields.pop("parameters", {}).items():
            request.parameters[name].CopyFrom(value)
        request.MergeFrom(inference.ModelInferRequest(**fields))
        return self.models.ModelInfer(request, timeout=timeout)

    @staticmethod
    def model_request(model: str, *values: float) -> inference.ModelInferRequest:
        tensor = inference.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[len(values)])
        return inference.ModelInferRequest(
            model_name=model, inputs=[tensor], raw_input_contents=[struct.pack(f"<{len(values)}f", *values)]
        )
