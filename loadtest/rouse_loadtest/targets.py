"""What load goes to: a server, and how to ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import grpc
import numpy as np

from rouse_contracts import inference
from rouse_loadtest.load import Request, Samples, closed_loop

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
TIMEOUT_S = 60.0
WARM_UP_S = 1.0
FIRST_TRIES = 300
FIRST_PAUSE_S = 0.2
DATATYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}


@dataclass(frozen=True)
class Target:
    """A server under load.

    Args:
        name: as in the tables.
        connect: opens a connection, waits for its first answer, and gives what asks once more.
    """

    name: str
    connect: Callable[[], AbstractAsyncContextManager[Request]]


def over_grpc(name: str, address: str, request: bytes, metadata: Sequence[tuple[str, str]] = ()) -> Target:
    """A server of the Open Inference Protocol, asked with a serialised ModelInferRequest."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[Request]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            method = channel.unary_unary(MODEL_INFER)

            async def ask() -> object:
                return await method(request, timeout=TIMEOUT_S, metadata=metadata or None)

            await _first_answer(ask)
            yield ask

    return Target(name, connect)


def over_http(name: str, url: str, body: bytes, content_type: str = "application/json") -> Target:
    """A server asked by POST, over connections that are kept."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[Request]:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, headers={"Content-Type": content_type}) as session:

            async def ask() -> object:
                async with session.post(url, data=body) as response:
                    response.raise_for_status()
                    return await response.read()

            await _first_answer(ask)
            yield ask

    return Target(name, connect)


async def _first_answer(ask: Request) -> None:
    """Some servers listen before they serve. Raises what the last of many requests raised."""
    for _ in range(FIRST_TRIES):
        try:
            await ask()
            return
        except (grpc.aio.AioRpcError, OSError) as error:
            refused = error
        await asyncio.sleep(FIRST_PAUSE_S)
    raise refused


def infer_request(model: str, tensors: Mapping[str, np.ndarray]) -> bytes:
    """A serialised ModelInferRequest with raw contents."""
    request = inference.ModelInferRequest(model_name=model)
    for name, array in tensors.items():
        request.inputs.add(name=name, datatype=DATATYPES[array.dtype.name], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request.SerializeToString()


async def interleaved(targets: Sequence[Target], clients: Sequence[int], rounds: int, seconds: float) -> Samples:
    """Samples by target and number of clients: in each round every target has its turn, in an order that moves on
    by one a round, so that what the machine does beside hits all alike."""
    found: Samples = {(t.name, c): [] for t in targets for c in clients}
    for target in targets:
        async with target.connect() as ask:
            await closed_loop(ask, max(clients), WARM_UP_S)
    for turn in range(rounds):
        first = turn % len(targets)
        for target in [*targets[first:], *targets[:first]]:
            async with target.connect() as ask:
                for count in clients:
                    found[target.name, count].append(await closed_loop(ask, count, seconds))
    return found
