"""Recorded arrivals played to a mesh: each request is sent when it is due, whatever became of those before it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import grpc

from rouse_contracts import functions
from rouse_contracts.status import decode_details
from rouse_loadtest.open_loop import MAX_UNDER_WAY
from rouse_loadtest.tallies import Tally
from rouse_simulator.arrivals import Arrivals

INFER = "/rouse.functions.v1.FunctionService/Infer"
WRONG_ANSWER, NOT_SENT = "WRONG_ANSWER", "NOT_SENT"
# The first requests are due so long after the sender has begun, so that none of them is late from the start.
HEAD_START_S = 0.2


@dataclass(frozen=True)
class Call:
    """What one function is asked.

    Args:
        request: a serialised InferRequest.
        answer: the data of the outputs that are right, bit for bit, whatever was swapped in between.
        objective_s: within which each request is to be answered.
    """

    request: bytes
    answer: tuple[bytes, ...]
    objective_s: float


@dataclass(frozen=True, slots=True)
class Answered:
    """One request that was answered. Seconds; `due` from the begin, `latency_s` from when it was due, the rest as the
    mesh says."""

    function: int
    due: float
    latency_s: float
    queue_s: float
    swap_s: float
    execute_s: float
    node_s: float
    swapped: bool
    device: str


@dataclass
class Played:
    """The outcome.

    Args:
        tallies: a function each, by number.
        answers: in the order in which they came.
        sender: how late the sender itself was, which latencies include.
        seconds: from the first arrival's zero to the last answer.
        began: that zero.
    """

    tallies: list[Tally]
    answers: list[Answered] = field(default_factory=list)
    sender: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    began: datetime = datetime.min


async def play(address: str, calls: Sequence[Call], arrivals: Arrivals, timeout_s: float) -> Played:
    """Sends every arrival at its time and waits for all answers; each has `timeout_s` from when it was sent.

    Raises ValueError where there is no call for a function.
    """
    if arrivals.count > len(calls):
        raise ValueError(f"arrivals of {arrivals.count} functions, calls of {len(calls)}")
    played = Played([Tally(call.objective_s) for call in calls])
    under_way: set[asyncio.Task[None]] = set()
    async with grpc.aio.insecure_channel(address) as channel, asyncio.TaskGroup() as tasks:
        method = channel.unary_unary(INFER, response_deserializer=functions.InferResponse.FromString)
        await asyncio.wait_for(channel.channel_ready(), timeout_s)
        began = time.perf_counter() + HEAD_START_S
        played.began = datetime.now(UTC) + timedelta(seconds=HEAD_START_S)
        for due, function in zip(arrivals.times.tolist(), arrivals.functions.tolist(), strict=True):
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            played.sender.answered(max(0.0, time.perf_counter() - began - due))
            if len(under_way) >= MAX_UNDER_WAY:
                played.tallies[function].failed(NOT_SENT)
                continue
            task = tasks.create_task(_one(method, played, calls[function], function, began, due, timeout_s))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
    played.seconds = time.perf_counter() - began
    return played


async def _one(
    method: grpc.aio.UnaryUnaryMultiCallable,
    played: Played,
    call: Call,
    function: int,
    began: float,
    due: float,
    timeout_s: float,
) -> None:
    tally = played.tallies[function]
    try:
        answer = await method(call.request, timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        tally.failed(decode_details(error).reason or error.code().name)
        return
    latency_s = time.perf_counter() - began - due
    if tuple(tensor.data for tensor in answer.outputs) != call.answer:
        tally.failed(WRONG_ANSWER)
        return
    tally.answered(latency_s)
    took = answer.timings
    played.answers.append(
        Answered(
            function, due, latency_s, took.queue_ms / 1000, took.swap_ms / 1000, took.execute_ms / 1000,
            took.total_ms / 1000, took.swap_ms > 0, answer.device,
        )
    )  # fmt: skip
