"""One worker's queue as the broker hands it out: in order, each message once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque

from google.protobuf.message import DecodeError

from rouse_bus.consumers import Consumer, Taken
from rouse_comm_broker.adapters.channels import JobChannels, job_not_found
from rouse_common.errors import NotFound, RouseError
from rouse_contracts.broker import Message

LOG = logging.getLogger(__name__)


class Mailbox:
    """A message goes through three hands: taken from the stream, confirmed to it, handed to the worker.

    It is handed out only after the stream has confirmed that it let go of it, so that nobody else gets it.
    Where a confirmation is lost with the connection, what the next consumer brings again is told by its
    sequence, and confirmed once more. A worker that goes away while it waits loses nothing.
    """

    def __init__(self, channels: JobChannels, job_id: str, rank: int) -> None:
        self._channels, self._job_id, self._rank = channels, job_id, rank
        self._lock = asyncio.Lock()
        self._consumer: Consumer | None = None
        # Of the present consumer, still to be confirmed.
        self._taken: list[Taken] = []
        # Each once, by sequence; handed out when what was taken is confirmed.
        self._unconfirmed: list[Message] = []
        self._confirmed: deque[Message] = deque()
        self._last_sequence = 0

    async def receive(self, limit: int, wait_s: float, max_bytes: int) -> list[Message]:
        """Up to `limit` messages of `max_bytes` in all, at least one where there is any; waits up to `wait_s`
        for the first. Raises NotFound JOB_NOT_FOUND, Unavailable BUS_DOWN."""
        deadline = time.monotonic() + wait_s
        try:
            async with asyncio.timeout(wait_s):
                await self._lock.acquire()
        except TimeoutError:
            return []  # another call waits at this queue
        try:
            if not self._confirmed:
                await self._fill(limit, max(0.0, deadline - time.monotonic()), max_bytes)
            return self._hand_out(limit, max_bytes)
        finally:
            self._lock.release()

    async def _fill(self, limit: int, wait_s: float, max_bytes: int) -> None:
        try:
            consumer = await self._opened()
            for taken in await consumer.take(limit, 0 if self._unconfirmed else wait_s, max_bytes=max_bytes):
                self._take(taken)
            await consumer.acknowledge(self._taken)
        except RouseError as error:
            self._taken = []
            await self.close()  # the next call begins with another one
            raise job_not_found(self._job_id) if isinstance(error, NotFound) else error from None
        self._taken = []
        self._confirmed.extend(self._unconfirmed)
        self._unconfirmed = []

    async def _opened(self) -> Consumer:
        if self._consumer is None or not self._consumer.alive:
            self._taken = []
            self._consumer = await self._channels.queue(self._job_id, self._rank).open()
        return self._consumer

    def _take(self, taken: Taken) -> None:
        self._taken.append(taken)
        if taken.sequence <= self._last_sequence:
            return
        self._last_sequence = taken.sequence
        message = Message()
        try:
            message.ParseFromString(taken.data)
        except DecodeError:
            LOG.error("dropped what is no message job=%s rank=%d sequence=%d", self._job_id, self._rank, taken.sequence)
            return
        message.sequence = taken.sequence
        self._unconfirmed.append(message)

    def _hand_out(self, limit: int, max_bytes: int) -> list[Message]:
        handed: list[Message] = []
        size = 0
        while self._confirmed and len(handed) < limit:
            size += self._confirmed[0].ByteSize()
            if handed and size > max_bytes:
                break
            handed.append(self._confirmed.popleft())
        return handed

    async def close(self) -> None:
        """Lets go of the queue."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()
