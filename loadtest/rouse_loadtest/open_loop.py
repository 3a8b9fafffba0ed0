"""Open-loop load: requests begin when their time has come, whether or not earlier ones were answered."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from rouse_contracts import inference
from rouse_contracts.status import decode_details
from rouse_loadtest.targets import MODEL_INFER

# Requests under way at once; beyond, the load generator itself would be what is measured.
MAX_UNDER_WAY = 2000
OK = "answered"


@dataclass(frozen=True)
class Question:
    """What is asked: `ask` makes the request of a number, `is_right` says whether an answer is that number's."""

    ask: Callable[[int], inference.ModelInferRequest]
    is_right: Callable[[int, inference.ModelInferResponse], bool]


@dataclass(frozen=True)
class End:
    """How one request ended.

    Args:
        at: monotonic seconds.
        latency_s: since the time at which it was to begin.
        outcome: "answered", or the reason of its error.
        typed: whether an error carried our ErrorInfo.
        accepted: whether it may have reached the gateway; a refused connection shows that it did not.
    """

    at: float
    latency_s: float
    outcome: str
    typed: bool
    accepted: bool


@dataclass
class Load:
    """Requests at random times to one model, each with an id of its own, sent once.

    Args:
        address: of the gateway.
        question: what is asked.
        rate: requests a second.
        timeout_s: deadline of each.
        seed: of the times.
    """

    address: str
    question: Question
    rate: float
    timeout_s: float
    seed: int
    begun: int = 0
    ends: dict[int, End] = field(default_factory=dict)
    skipped: int = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Sends until `stop` is set, then waits for what is under way."""
        draw = random.Random(self.seed)
        numbers = itertools.count()
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
        async with grpc.aio.insecure_channel(self.address, options=options) as channel, asyncio.TaskGroup() as tasks:
            method = channel.unary_unary(MODEL_INFER, response_deserializer=inference.ModelInferResponse.FromString)
            due = time.monotonic()
            while not stop.is_set():
                due += draw.expovariate(self.rate)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if self.begun - len(self.ends) >= MAX_UNDER_WAY:
                    self.skipped += 1
                    continue
                self.begun += 1
                tasks.create_task(self._one(method, next(numbers), due))

    async def _one(self, method: grpc.aio.UnaryUnaryMultiCallable, number: int, due: float) -> None:
        request = self.question.ask(number)
        request.id = str(number)
        try:
            answer = await method(request.SerializeToString(), timeout=self.timeout_s)
            right = self.question.is_right(number, answer)
            outcome, typed, accepted = OK if right else "WRONG_ANSWER", right, True
        except grpc.aio.AioRpcError as error:
            details = decode_details(error)
            typed = bool(details.reason) and details.reason != error.code().name
            # DEADLINE_EXCEEDED is its own reason, whoever says it.
            typed = typed or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            refused = "failed to connect" in (error.details() or "")
            outcome, accepted = details.reason, not refused
        assert number not in self.ends
        now = time.monotonic()
        self.ends[number] = End(now, now - due, outcome, typed, accepted)

    def between(self, start: float, end: float) -> list[End]:
        """What ended in a stretch of time."""
        # A copy: the load goes on in its own thread.
        return [e for e in list(self.ends.values()) if start <= e.at < end]


def outcomes(ends: list[End]) -> Counter[str]:
    """How many ended how."""
    return Counter(e.outcome for e in ends)
