"""Sequences: requests that one instance must serve, one after the other, in the order in which they came.

The first request of a sequence says so, and goes wherever there is a device. The instance that executes it is the
sequence's own from then on: the others ask for that one. Where it is gone, what it knew of the sequence is gone too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rouse_common.clock import Clock
from rouse_common.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from rouse_contracts import node
from rouse_node_router.answers import expired

MAX_SEQUENCES = 10_000
# Requests of one sequence that wait for their predecessors.
MAX_WAITING = 256
RETRY_S = 1.0


class Sequence:
    """One sequence.

    Attributes:
        instance_id: serves it; empty until its first request is executed.
        lost: whether that instance is gone.
        used_at: when it had its latest request, monotonic seconds.
    """

    def __init__(self) -> None:
        self.instance_id = ""
        self.lost = False
        self.used_at = 0.0
        self.waiting = 0
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, request: node.InferRequest, left_s: float) -> AsyncIterator[None]:
        """Waits for its predecessors, in the order of arrival. Raises DeadlineExceeded, ResourceExhausted."""
        if self.waiting >= MAX_WAITING:
            raise ResourceExhausted(
                "QUEUE_FULL",
                f"{MAX_WAITING} requests of sequence '{request.options.sequence.id}' wait already; try again later",
                retry_after_s=RETRY_S, function=request.function,
            )  # fmt: skip
        self.waiting += 1
        try:
            try:
                async with asyncio.timeout(left_s):
                    await self._turn.acquire()
            except TimeoutError:
                raise expired(request) from None
            try:
                yield
            finally:
                self._turn.release()
        finally:
            self.waiting -= 1


class Sequences:
    """The sequences of a node, bounded; one without requests for `idle_s` seconds is forgotten."""

    def __init__(self, idle_s: float, clock: Clock) -> None:
        self._idle_s, self._clock = idle_s, clock
        # In the order of their latest use.
        self._known: dict[tuple[str, str, str], Sequence] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, request: node.InferRequest) -> Sequence:
        """The sequence that a request belongs to; a new one where it starts one.

        Raises InvalidArgument SEQUENCE_NOT_STARTED, FailedPrecondition SEQUENCE_LOST, ResourceExhausted
        TOO_MANY_SEQUENCES.
        """
        self.forget_idle()
        key, asked = _key(request), request.options.sequence
        known = self._known.pop(key, None)
        if asked.start:
            if len(self._known) >= MAX_SEQUENCES:
                raise ResourceExhausted(
                    "TOO_MANY_SEQUENCES",
                    f"{MAX_SEQUENCES} sequences are under way on this node already; end some, or try again later",
                    retry_after_s=RETRY_S, function=request.function,
                )  # fmt: skip
            known = Sequence()
        elif known is None:
            raise InvalidArgument(
                "SEQUENCE_NOT_STARTED",
                f"sequence '{asked.id}' of function '{request.function}' was not started here, or had no request for "
                f"{self._idle_s:g} s; its first request must say that it starts it",
                function=request.function, sequence=asked.id,
            )  # fmt: skip
        self._known[key] = known
        known.used_at = self._clock.monotonic()
        if known.lost:
            raise lost(request)
        return known

    def ended(self, request: node.InferRequest, sequence: Sequence) -> None:
        """A request of it is over: it may have been the last one, or have come to nothing as the first one."""
        sequence.used_at = self._clock.monotonic()
        unstarted = request.options.sequence.start and not sequence.instance_id
        if (request.options.sequence.end or unstarted) and self._known.get(_key(request)) is sequence:
            del self._known[_key(request)]

    def forget_idle(self) -> None:
        """Drops sequences that nothing was heard of."""
        before = self._clock.monotonic() - self._idle_s
        while self._known:
            key, sequence = next(iter(self._known.items()))
            if sequence.used_at > before:
                return
            del self._known[key]
            if sequence.waiting:
                # Its requests are still under way.
                self._known[key] = sequence
                sequence.used_at = self._clock.monotonic()


def lost(request: node.InferRequest) -> FailedPrecondition:
    """What requests of a sequence hear whose instance is gone."""
    return FailedPrecondition(
        "SEQUENCE_LOST",
        f"the instance that served sequence '{request.options.sequence.id}' of function '{request.function}' is gone, "
        "and what it knew of it too; start the sequence again",
        function=request.function,
        sequence=request.options.sequence.id,
    )


def _key(request: node.InferRequest) -> tuple[str, str, str]:
    return request.version_id, request.tenant, request.options.sequence.id
