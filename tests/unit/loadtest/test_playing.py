"""The sender, against a server that is slow, wrong or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest

from rouse_contracts import functions
from rouse_loadtest.playing import INFER, WRONG_ANSWER, Call, play
from rouse_simulator.arrivals import Arrivals

RIGHT = (b"right",)
SERVICE, METHOD = INFER.strip("/").split("/")


class Server:
    """Answers by function; "stuck" ones only when so many of them are here at once."""

    def __init__(self, together: int = 0) -> None:
        self.held, self.together = 0, together
        self.all_here = asyncio.Event()

    async def infer(
        self, request: functions.InferRequest, context: grpc.aio.ServicerContext
    ) -> functions.InferResponse:
        self.held += 1
        try:
            if request.function == "stuck":
                if self.held == self.together:
                    self.all_here.set()
                await self.all_here.wait()
            if request.function == "refused":
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
            response = functions.InferResponse(device="gpu0")
            response.outputs.add(name="y", data=b"wrong" if request.function == "wrong" else RIGHT[0])
            response.timings.swap_ms, response.timings.execute_ms = 3.0, 2.0
            return response
        finally:
            self.held -= 1


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    grpc_server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        server.infer, functions.InferRequest.FromString, functions.InferResponse.SerializeToString
    )
    grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await grpc_server.stop(None)


def calls(*names: str) -> list[Call]:
    return [Call(functions.InferRequest(function=name).SerializeToString(), RIGHT, 30.0) for name in names]


def arriving(*coming: tuple[float, int], count: int) -> Arrivals:
    return Arrivals(np.array([t for t, _ in coming]), np.array([f for _, f in coming], dtype=np.int32), count)


async def test_every_request_ends_once_by_outcome() -> None:
    async with serving(Server()) as address:
        coming = arriving((0.0, 0), (0.01, 1), (0.02, 2), (0.03, 0), count=3)
        played = await play(address, calls("good", "wrong", "refused"), coming, timeout_s=60.0)
    good, wrong, refused = played.tallies
    assert (good.sent, good.answers, good.in_time, good.errors) == (2, 2, 2, {})
    assert (wrong.sent, wrong.answers, dict(wrong.errors)) == (1, 0, {WRONG_ANSWER: 1})
    assert (refused.sent, dict(refused.errors)) == (1, {"RESOURCE_EXHAUSTED": 1})
    assert [a.function for a in played.answers] == [0, 0]
    assert all((a.swapped, a.swap_s, a.execute_s, a.device) == (True, 0.003, 0.002, "gpu0") for a in played.answers)
    assert played.sender.sent == 4


async def test_requests_are_sent_though_none_before_them_was_answered() -> None:
    async with serving(Server(together=50)) as address, asyncio.timeout(60):
        coming = arriving(*((0.001 * n, 0) for n in range(50)), count=1)
        played = await play(address, calls("stuck"), coming, timeout_s=60.0)
    assert played.tallies[0].answers == 50


async def test_latency_counts_from_when_the_request_was_due_not_from_when_it_was_sent() -> None:
    async with serving(Server()) as address:
        # Due half a second before the sender begins: it is late by that at least.
        played = await play(address, calls("good"), arriving((-0.7, 0), count=1), timeout_s=60.0)
    assert played.answers[0].latency_s >= 0.5
    assert played.tallies[0].quantile_s(0.5) >= 0.499
    assert played.sender.quantile_s(1.0) >= 0.499


async def test_arrivals_of_functions_without_a_call_are_refused() -> None:
    with pytest.raises(ValueError, match="arrivals of 2 functions, calls of 1"):
        await play("127.0.0.1:1", calls("good"), arriving((0.0, 1), count=2), timeout_s=1.0)
